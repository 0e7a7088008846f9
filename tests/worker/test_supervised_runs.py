"""One run under supervision, with a real runner process and a real database."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update

from service.db.engine import Database
from service.experiments.models import Experiment
from service.queue import states
from service.queue.lease import Claim
from service.records import results
from service.records.curves import read_series
from service.settings import Settings
from service.vocabulary import DesiredState
from tests.support.attempts import claimed
from tests.support.ppca_spec import ppca_spec
from tests.support.stored import row
from tests.support.warm import warm_parent
from worker.runner import Runner
from worker.supervisor import Supervision

LONG = ppca_spec(data__dim=150, evaluate__masks__per_size=200_000)
"""About a minute of work, if nothing ends it."""


def outcome(
    database: Database,
    settings: Settings,
    spec: dict[str, Any],
    act: Callable[[Claim, Runner], object] = lambda claim, runner: None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> tuple[str, Experiment]:
    """Run a spec, and call `act` in a thread at the first progress, if any comes."""
    claim = claimed(database, spec)
    runner = Runner(warm_parent().fork)
    over = threading.Event()

    def beside() -> None:
        while row(database, claim.experiment_id).progress_done is None:
            if over.wait(0.05):
                return
        act(claim, runner)

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        ended = Supervision(database, settings, claim, runner).run(is_stopping)
    finally:
        over.set()
        thread.join()
    assert not runner.alive
    return ended, row(database, claim.experiment_id)


def test_every_record_arrives_once(database: Database, settings: Settings) -> None:
    ended, experiment = outcome(database, settings, ppca_spec(evaluate__convergence=True))
    assert (ended, experiment.status) == ("succeeded", "succeeded")
    assert experiment.progress_done == experiment.progress_total == 24
    with database.snapshot() as session:
        found = {s.name: s for s in read_series(session, experiment.id, max_points=1000)}
        names = {metric.name for metric in results.metrics(session, experiment.id)}
    assert found["score"].x == [1, 2, 3, 4, 5, 6]
    assert found["convergence"].x == [1, 2, 3, 4]
    assert found["convergence"].std_err[0] is None
    assert names == {"lml", "mpt", "difference"}


def test_cancel_reaches_the_runner(database: Database, settings: Settings) -> None:
    asked = []

    def cancel(claim: Claim, runner: Runner) -> None:
        asked.append(time.monotonic())
        with database.transaction() as session:
            states.request(session, claim.experiment_id, DesiredState.CANCEL)

    ended, experiment = outcome(database, settings, LONG, cancel)
    assert time.monotonic() - asked[0] < 5
    assert (ended, experiment.status) == ("cancelled", "cancelled")


def test_a_runner_that_ignores_sigterm_is_killed(database: Database, settings: Settings) -> None:
    def cancel(claim: Claim, runner: Runner) -> None:
        runner.signal(signal.SIGSTOP)  # it cannot even see a SIGTERM
        with database.transaction() as session:
            states.request(session, claim.experiment_id, DesiredState.CANCEL)

    impatient = settings.model_copy(update={"kill_grace_s": 0.5})
    ended, _ = outcome(database, impatient, LONG, cancel)
    assert ended == "cancelled"


def test_a_killed_runner_is_retried(database: Database, settings: Settings) -> None:
    ended, experiment = outcome(
        database, settings, LONG, lambda claim, runner: runner.signal(signal.SIGKILL)
    )
    assert ended == "lost"
    assert (experiment.status, experiment.lost) == ("queued", 1)


def test_a_stopping_worker_hands_back(database: Database, settings: Settings) -> None:
    stopping = threading.Event()
    ended, experiment = outcome(
        database, settings, LONG, lambda claim, runner: stopping.set(), stopping.is_set
    )
    assert ended == "unfinished"
    assert (experiment.status, experiment.lost) == ("queued", 0)


def test_a_lost_lease_ends_the_run(database: Database, settings: Settings) -> None:
    def take_over(claim: Claim, runner: Runner) -> None:
        with database.transaction() as session:
            session.execute(
                update(Experiment)
                .where(Experiment.id == claim.experiment_id)
                .values(attempt=claim.attempt + 1)
            )

    ended, experiment = outcome(database, settings, LONG, take_over)
    assert ended == "lease lost"
    assert experiment.status == "running"  # the other attempt's


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
    ended = Supervision(database, settings, broken, Runner(warm_parent().fork)).run(lambda: False)
    experiment = row(database, claim.experiment_id)
    assert (ended, experiment.failure_kind) == ("failed", "invalid")
    assert reason in (experiment.failure_message or "")
