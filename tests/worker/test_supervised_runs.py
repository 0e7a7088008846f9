"""One run under supervision, with a real runner process and a real database."""

import threading
from typing import Any

import pytest

from service.db.engine import Database
from service.queue import states
from service.queue.lease import Claim
from service.records import results
from service.records.curves import read_series
from service.settings import Settings
from service.vocabulary import DesiredState
from tests.support.attempts import claimed
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until
from tests.support.stored import row
from tests.support.warm import warm_parent
from worker.runner import Runner
from worker.supervisor import Supervision

LONG = ppca_spec(data__dim=150, evaluate__masks__per_size=200_000)
"""About a minute of work, if nothing ends it."""


def run(database: Database, settings: Settings, claim: Claim) -> str:
    return Supervision(database, settings, claim, Runner(warm_parent().fork)).run(lambda: False)


def test_every_record_arrives_once(database: Database, settings: Settings) -> None:
    claim = claimed(database, ppca_spec(evaluate__convergence=True))
    assert run(database, settings, claim) == "succeeded"
    experiment = row(database, claim.experiment_id)
    assert experiment.status == "succeeded"
    assert experiment.progress_done == experiment.progress_total == 24
    with database.snapshot() as session:
        series = {s.name: s for s in read_series(session, experiment.id, max_points=1000)}
        names = {metric.name for metric in results.metrics(session, experiment.id)}
    assert series["score"].x == [1, 2, 3, 4, 5, 6]
    assert series["convergence"].x == [1, 2, 3, 4]
    assert series["convergence"].std_err[0] is None
    assert names == {"lml", "mpt", "difference"}


def test_a_cancel_reaches_the_runner(database: Database, settings: Settings) -> None:
    claim = claimed(database, LONG)

    def cancel() -> None:
        wait_until(lambda: row(database, claim.experiment_id).progress_done is not None)
        with database.transaction() as session:
            states.request(session, claim.experiment_id, DesiredState.CANCEL)

    thread = threading.Thread(target=cancel)
    thread.start()
    assert run(database, settings, claim) == "cancelled"
    thread.join()
    experiment = row(database, claim.experiment_id)
    assert experiment.status == "cancelled"
    assert (experiment.progress_done or 0) < (experiment.progress_total or 0)


SINGULAR = ppca_spec(
    model={"family": "ppca", "latent_dim": 5, "init": "maximum_likelihood"},
    data__latent_dim=1,
    data__noise="shared",
    data__noise_precision=1e12,
)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"model": {"family": "none"}}, "/model/family: one of 'ppca'"),
        (SINGULAR, "lower latent_dim or give a noise_precision"),
    ],
)
def test_an_invalid_run_has_a_reason(
    database: Database, settings: Settings, spec: dict[str, Any], reason: str
) -> None:
    claim = claimed(database, ppca_spec())
    broken = Claim(claim.experiment_id, claim.attempt, {**spec, "compute": {"max_runtime_s": 60}})
    assert run(database, settings, broken) == "failed"
    experiment = row(database, claim.experiment_id)
    assert experiment.failure_kind == "invalid"
    assert reason in (experiment.failure_message or "")
