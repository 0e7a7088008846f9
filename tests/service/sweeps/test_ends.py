"""Estimated ends of sweeps that start their points a few at a time."""

import time
from datetime import datetime

from fastapi.testclient import TestClient
from sqlalchemy import update

from service.experiments.models import Attempt, Queue
from service.queue import forecast, workers
from service.queue.workers import Vitals
from tests.service.sweeps.test_sweeps import SPEC, claim_next, finish, sweep
from tests.support import stored
from tests.support.callers import database_of

RUN_S = 100.0


def run_three(api: TestClient) -> None:
    """Register two CPU workers, and store three runs that took `RUN_S` on them."""
    database = database_of(api)
    with database.transaction() as session:
        for name in ("cpu0", "cpu1"):
            workers.beat(session, name, Vitals("host", Queue.CPU, 1))
    for seed in (7, 8, 9):
        answer = api.post("/v1/experiments", json={"spec": {**SPEC, "seeds": [seed]}})
        assert answer.status_code == 202
        finish(database, claim_next(database))
    with database.transaction() as session:
        session.execute(update(Attempt).values(started_at=Attempt.ended_at - RUN_S))


def test_held_points_are_expected_to_run_in_rounds(admin: TestClient) -> None:
    run_three(admin)
    before = time.time()
    made = sweep(admin, concurrency=2)  # six points: three rounds of two
    end = datetime.fromisoformat(made["estimated_end"]).timestamp()
    latest = time.time() + 1 + 3 * RUN_S  # the first start is rounded up to a second
    assert before + 3 * RUN_S <= end <= latest
    assert made["estimate"] == forecast.BASIS


def test_a_point_that_waits_begins_when_a_run_ends(admin: TestClient) -> None:
    """Both workers are busy; then two rounds of two follow. Another experiment in the queue, after
    the sweep, delays nothing."""
    run_three(admin)
    database = database_of(admin)
    for seed, priority in ((10, 0), (11, -10)):
        one = {"spec": {**SPEC, "seeds": [seed]}, "priority": priority}
        assert admin.post("/v1/experiments", json=one).status_code == 202
    run = claim_next(database)
    made = sweep(admin, concurrency=2)
    before = time.time()
    for claim, worker in ((run, "cpu0"), (claim_next(database), "cpu1")):
        assert claim is not None
        stored.change(database, claim.experiment_id, worker=worker)
    made = admin.get(f"/v1/sweeps/{made['id']}").json()
    end = datetime.fromisoformat(made["estimated_end"]).timestamp()
    assert before + 4 * RUN_S <= end <= time.time() + 4 * RUN_S + 60  # starts are rounded up


def test_no_end_is_estimated_if_held_points_need_a_worker_without_runs(admin: TestClient) -> None:
    run_three(admin)
    points = [{"compute.device": device} for device in ("cpu", "cpu", "cuda")]
    made = sweep(admin, list=points, concurrency=2)
    assert claim_next(database_of(admin)) is not None  # the second waits, the third is held
    made = admin.get(f"/v1/sweeps/{made['id']}").json()
    assert (made["estimated_end"], made["estimate"]) == (None, forecast.UNKNOWN)
