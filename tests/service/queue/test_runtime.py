"""Run time estimated from other runs, with a reliable interval."""

import math
import random

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from service.experiments.models import Attempt, Queue
from service.experiments.schemas import Submission
from service.queue import lease, workers
from service.queue.lease import FailureCause
from service.queue.runtime import MIN_RUNS, learned
from service.queue.workers import Vitals
from service.vocabulary import Status
from tests.support import stored
from tests.support.attempts import claim_next
from tests.support.callers import database_of
from tests.support.ppca_spec import ppca_spec


def ran(
    api: TestClient,
    took_s: float,
    status: Status = Status.SUCCEEDED,
    size: int = 4,
    worker: str = "w",
) -> None:
    """One experiment that took so long."""
    database = database_of(api)
    spec = ppca_spec(evaluate__masks__per_size=size)
    with database.transaction() as session:
        made = stored.submit(session, 1, Submission.model_validate({"spec": spec})).id
    claim = claim_next(database)
    cause = None if status == Status.SUCCEEDED else FailureCause("error", "x")
    with database.transaction() as session:
        lease.finish(session, claim, status, cause)
        lasted = Attempt.ended_at - took_s
        session.flush()
        changed = update(Attempt).where(Attempt.experiment_id == made)
        session.execute(changed.values(started_at=lasted, worker=worker))


def validated(api: TestClient, **changes: object) -> dict[str, object]:
    answer = api.post("/v1/experiments:validate", json={"spec": ppca_spec(**changes)})
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


def test_validation_estimates_the_cost(admin: TestClient) -> None:
    for i in range(MIN_RUNS - 1):
        ran(admin, 10.0 + i)
    ran(admin, 1000.0, Status.FAILED)
    assert validated(admin)["runtime"] is None
    ran(admin, 14.0)
    assert validated(admin)["runtime"] == {
        "median_s": pytest.approx(12, rel=1e-3),
        "low_s": pytest.approx(10, rel=1e-3),
        "high_s": pytest.approx(14, rel=1e-3),
        "runs": 5,
        "host": None,
    }
    assert validated(admin, compute__device="cuda")["runtime"] is None
    factor = {"family": "factor_analysis", "latent_dim": 2, "init": "maximum_likelihood"}
    assert validated(admin, model=factor)["runtime"] is None


def test_more_work_takes_longer(admin: TestClient) -> None:
    for size in (10, 20, 40, 80, 160):
        ran(admin, size / 10, size=size)
    found = validated(admin, evaluate__masks__per_size=320)["runtime"]
    assert found["median_s"] == pytest.approx(32, rel=1e-2)  # type: ignore[index]


def present(api: TestClient, *hosts: str) -> None:
    with database_of(api).transaction() as session:
        for host in hosts:
            workers.beat(session, f"{host}:1", Vitals(host, Queue.CPU, 2**40))


def test_runtimes_are_estimated_for_each_machine(admin: TestClient) -> None:
    """The machine needs present workers and enough finished runs; the slowest machine is
    reported."""
    for host, took_s in (("fast", 10.0), ("slow", 40.0), ("gone", 90.0), ("new", 70.0)):
        for _ in range(1 if host == "new" else MIN_RUNS):
            ran(admin, took_s, worker=f"{host}:7")
    present(admin, "fast")
    assert validated(admin)["runtime"]["host"] == "fast"  # type: ignore[index]
    present(admin, "slow", "new")
    found = validated(admin)["runtime"]
    assert found["host"] == "slow"  # type: ignore[index]
    assert found["median_s"] == pytest.approx(40, rel=1e-3)  # type: ignore[index]
    assert found["runs"] == MIN_RUNS  # type: ignore[index]


def test_the_runtime_on_a_new_machine_is_estimated_from_others(admin: TestClient) -> None:
    for _ in range(MIN_RUNS):
        ran(admin, 10.0, worker="gone:7")
    present(admin, "new")
    found = validated(admin)["runtime"]
    assert (found["host"], found["runs"]) == (None, MIN_RUNS)  # type: ignore[index]


def test_validation_estimates_the_start(admin: TestClient) -> None:
    assert validated(admin)["estimated_start"] is None
    assert validated(admin)["estimate"] == "no CPU worker is registered"
    present(admin, "idle")
    assert validated(admin)["estimated_start"] is not None


def test_validation_reports_a_cached_result(admin: TestClient) -> None:
    assert validated(admin)["cached_from"] is None
    made = admin.post("/v1/experiments", json={"spec": ppca_spec()}).json()["id"]
    claim = claim_next(database_of(admin))
    with database_of(admin).transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
    assert validated(admin)["cached_from"] == made
    body = {"spec": ppca_spec(), "cache": False}
    assert admin.post("/v1/experiments:validate", json=body).json()["cached_from"] is None


@pytest.mark.parametrize(("runs", "slope"), [(9, 0.0), (30, 0.7)])
def test_four_of_five_runs_are_within_the_estimate(runs: int, slope: float) -> None:
    """Check the next run in each of a thousand labs: 80 %, less the loss from fitting a line to few
    runs, within five standard errors."""
    generator = random.Random(1)
    inside, labs = 0, 1000
    for _ in range(labs):
        works = [generator.uniform(0, 5) if slope else 1.0 for _ in range(runs + 1)]
        times = [slope * work + generator.gauss(0, 0.3) for work in works]
        found = learned(list(zip(works, times, strict=True))[:-1], works[-1])
        assert found is not None
        inside += found.low_s <= math.exp(times[-1]) <= found.high_s
    error = math.sqrt(0.8 * 0.2 / labs)
    assert 0.8 - 0.03 - 5 * error < inside / labs < 0.8 + 5 * error


@pytest.mark.filterwarnings("error")
def test_runs_of_the_same_work_do_not_show_how_time_grows() -> None:
    found = learned([(3.0, math.log(10.0))] * MIN_RUNS, log_work=5.0)
    assert found is not None
    assert found.median_s == pytest.approx(10.0)
