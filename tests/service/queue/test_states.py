"""Cancel, pause and resume: from each state, and refusals."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import select, text

from service.db.engine import Database
from service.experiments.models import Experiment, Held
from service.experiments.schemas import Submission
from service.queue import lease, states
from service.records import results
from service.records.recording import Batch, record
from service.settings import Settings
from service.sweeps import store as sweeps
from service.sweeps.schemas import SweepSubmission
from service.vocabulary import TERMINAL, DesiredState, Status
from service.webhooks.models import Delivery, Webhook
from tests.support import stored
from tests.support.attempts import claimed, submitted
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until
from tests.support.starting import release_held
from tests.support.stored import change, row, status_events

CANCEL, PAUSE, RUN = DesiredState.CANCEL, DesiredState.PAUSE, DesiredState.RUN

AT_ONCE = [
    (Status.QUEUED, CANCEL, Status.CANCELLED),
    (Status.PAUSED, CANCEL, Status.CANCELLED),
    (Status.QUEUED, PAUSE, Status.PAUSED),
    (Status.PAUSED, RUN, Status.QUEUED),
]
REFUSED = [
    (Status.PAUSED, PAUSE),
    (Status.QUEUED, RUN),
    *((status, desired) for status in TERMINAL for desired in DesiredState),
]
OF_A_RUN = [
    (RUN, CANCEL, True), (PAUSE, CANCEL, True), (CANCEL, CANCEL, True),
    (RUN, PAUSE, True), (PAUSE, PAUSE, True), (CANCEL, PAUSE, False),
    (RUN, RUN, True), (PAUSE, RUN, True), (CANCEL, RUN, False),
]  # fmt: skip
"""Stored request, new request, and whether it is granted: a cancel is final."""


def request(database: Database, experiment_id: str, desired: DesiredState) -> Status | None:
    with database.transaction() as session:
        return states.request(session, experiment_id, desired)


@pytest.fixture
def other(database: Database) -> str:
    """An experiment without requests of its owner."""
    return submitted(database)


@pytest.mark.parametrize(("status", "desired", "becomes"), AT_ONCE)
def test_waiting_experiments_change_state_at_once(
    database: Database, other: str, status: Status, desired: DesiredState, becomes: Status
) -> None:
    experiment_id = submitted(database)
    change(database, experiment_id, status=status, finished_at=5.0)
    assert request(database, experiment_id, desired) == becomes
    found = row(database, experiment_id)
    assert (found.status, found.desired_state) == (becomes, desired)
    if becomes == Status.CANCELLED:
        assert found.finished_at == pytest.approx(time.time(), abs=60)
    else:
        assert found.finished_at is None
    assert status_events(database, experiment_id) == [{"status": "queued"}, {"status": becomes}]
    assert row(database, other).status == "queued"
    assert status_events(database, other) == [{"status": "queued"}]


@pytest.mark.parametrize(("status", "desired"), REFUSED)
def test_changes_that_the_state_forbids_are_refused(
    database: Database, other: str, status: Status, desired: DesiredState
) -> None:
    experiment_id = submitted(database)
    change(database, experiment_id, status=status)
    assert request(database, experiment_id, desired) is None
    assert row(database, experiment_id).status == status
    assert status_events(database, experiment_id) == [{"status": "queued"}]


@pytest.mark.parametrize(("desired", "asked", "granted"), OF_A_RUN)
def test_a_running_experiment_is_signalled_and_a_cancel_is_final(
    database: Database, other: str, desired: DesiredState, asked: DesiredState, granted: bool
) -> None:
    experiment_id = submitted(database)
    for one in (experiment_id, other):
        change(database, one, status=Status.RUNNING, desired_state=desired)
    assert request(database, experiment_id, asked) == (Status.RUNNING if granted else None)
    assert row(database, experiment_id).desired_state == (asked if granted else desired)
    assert row(database, experiment_id).status == "running"
    assert row(database, other).desired_state == desired
    assert status_events(database, experiment_id) == [{"status": "queued"}]


def test_missing_experiments_cannot_be_changed(database: Database, other: str) -> None:
    assert request(database, "0" * 32, CANCEL) is None
    assert row(database, other).status == "queued"


def test_no_cancel_is_lost_between_two_states(lab: Settings) -> None:
    """It comes while a run is handed back, and waits for where that leads."""
    locks = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with closing(Database(lab.url)) as database, ThreadPoolExecutor(1) as beside:
        claim = claimed(database)
        with database.transaction() as session:
            lease.release(session, claim)
            asked = beside.submit(request, database, claim.experiment_id, CANCEL)
            wait_until(lambda: session.execute(locks).scalar_one() > 0, what="a wait for the row")
        assert asked.result() == Status.CANCELLED


def told(database: Database) -> list[tuple[str, str]]:
    """Return the pending webhook notifications and their experiments."""
    with database.snapshot() as session:
        rows = session.execute(select(Delivery.experiment_id, Delivery.status))
        return sorted((one, status) for one, status in rows)


@pytest.fixture
def webhook(database: Database) -> None:
    """It reports every end."""
    every = ",".join(TERMINAL)
    with database.transaction() as session:
        session.add(Webhook(id="w", owner_id=1, url="http://a", secret="s", statuses=every))


def after(database: Database, *others: str) -> str:
    """A new experiment that waits for these."""
    submission = Submission.model_validate({"spec": ppca_spec(), "after": [*others]})
    with database.transaction() as session:
        return stored.submit(session, 1, submission, unfinished=others).id


@pytest.mark.usefixtures("webhook")
def test_successors_fail_along_the_chain(database: Database, other: str) -> None:
    """Each failure names its cause; unrelated experiments continue."""
    first = submitted(database)
    second, beside = after(database, first), after(database, first)
    third = after(database, second, other)
    apart = after(database, other)
    assert request(database, first, CANCEL) == Status.CANCELLED
    release_held(database)
    failed = [second, beside, third]
    for one in failed:
        assert row(database, one).status == "failed"
        assert status_events(database, one)[1:] == [{"status": "failed", "after": first}]
    assert (row(database, apart).status, row(database, apart).held) == ("queued", Held.AFTER)
    assert status_events(database, apart) == [{"status": "queued"}]
    assert told(database) == sorted([(first, "cancelled"), *((one, "failed") for one in failed)])


def sweep(database: Database, **beside: Any) -> str:
    body = {"spec": ppca_spec(), "grid": {"seeds": [[1], [2]]}, **beside}
    with database.transaction() as session:
        return sweeps.add(session, sweeps.new(1, SweepSubmission.model_validate(body))).id


@pytest.mark.parametrize("concurrency", [1, None])
def test_a_resumed_experiment_waits_for_the_limit_of_its_sweep(
    database: Database, concurrency: int | None
) -> None:
    """The sweep has a limit, and another run."""
    one, running = submitted(database), submitted(database)
    sweep_id = sweep(database, concurrency=concurrency)
    change(database, one, sweep_id=sweep_id)
    change(database, running, sweep_id=sweep_id, status=Status.RUNNING)
    request(database, one, PAUSE)
    assert row(database, one).held == Held.NOT
    request(database, one, RUN)
    assert row(database, one).held == (Held.SWEEP if concurrency else Held.NOT)


@pytest.mark.usefixtures("webhook")
def test_a_sweep_is_cancelled_as_a_whole(database: Database, other: str) -> None:
    """Waiting experiments end immediately, a run ends through its worker, and dependent ones fail.
    Finished experiments and those of other sweeps do not change."""
    mine, others = sweep(database), sweep(database)
    points = {}
    for status in (Status.QUEUED, Status.PAUSED, Status.RUNNING, Status.FAILED):
        points[status] = submitted(database)
        change(database, points[status], status=status, sweep_id=mine, finished_at=5.0)
    change(database, other, sweep_id=others)
    late = after(database, points[Status.PAUSED])
    with database.transaction() as session:
        done = states.cancel_all(session, Experiment.sweep_id == mine)
        assert (len(done.ids), len(done.at_once)) == (3, 2)
    release_held(database)
    for status, one in points.items():
        found = row(database, one)
        waited = status in (Status.QUEUED, Status.PAUSED)
        assert found.status == ("cancelled" if waited else status)
        assert found.desired_state == ("run" if status == Status.FAILED else "cancel")
        ended_at = pytest.approx(time.time(), abs=60) if waited else 5.0
        assert found.finished_at == ended_at
        events = [{"status": "cancelled"}] if waited else []
        assert status_events(database, one)[1:] == events
    assert (row(database, other).status, row(database, other).desired_state) == ("queued", "run")
    assert row(database, late).status == "failed"
    ended = [points[status] for status in (Status.QUEUED, Status.PAUSED)]
    assert told(database) == sorted([*((one, "cancelled") for one in ended), (late, "failed")])
    with database.transaction() as session:
        assert (
            len(states.cancel_all(session, Experiment.sweep_id == mine).ids) == 1
        )  # the run has not ended yet


def test_files_of_long_paused_experiments_are_deleted(
    either: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its latest states and its log are kept."""
    monkeypatch.setattr(states, "MAX_STATUSES", 5)
    claim = claimed(either)
    other = submitted(either)
    batch = Batch()
    batch.add({"seq": 1, "record": "log", "level": "info", "message": "begun"})
    with either.transaction() as session:
        record(session, claim, batch, 60)
        lease.release(session, claim)
    for _ in range(4):
        for desired in (PAUSE, RUN):
            with either.transaction() as session:
                states.request(session, claim.experiment_id, desired)
    found = [one["status"] for one in status_events(either, claim.experiment_id)]
    assert found == ["queued", "paused", "queued", "paused", "queued"]
    assert len(status_events(either, other)) == 1
    with either.snapshot() as session:
        assert len(results.logs(session, claim.experiment_id, 0, None, 9)) == 1
