"""Cancel, pause and resume: from each state, and what is refused there."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import text

from service.database import Database
from service.experiments import lease, states, store
from service.experiments.models import TERMINAL, DesiredState, Status
from service.experiments.recording import Batch, record
from service.settings import Settings
from tests.support.attempts import claimed, submitted
from tests.support.processes import wait_until
from tests.support.stored import change, row, status_events

CANCEL, PAUSE, RUN = DesiredState.CANCEL, DesiredState.PAUSE, DesiredState.RUN

AT_ONCE = [
    (Status.QUEUED, CANCEL, Status.CANCELLED),
    (Status.DISPATCHED, CANCEL, Status.CANCELLED),
    (Status.PAUSED, CANCEL, Status.CANCELLED),
    (Status.QUEUED, PAUSE, Status.PAUSED),
    (Status.DISPATCHED, PAUSE, Status.PAUSED),
    (Status.PAUSED, RUN, Status.QUEUED),
]
REFUSED = [
    (Status.PAUSED, PAUSE),
    (Status.QUEUED, RUN),
    (Status.DISPATCHED, RUN),
    *((status, desired) for status in TERMINAL for desired in DesiredState),
]
OF_A_RUN = [
    (RUN, CANCEL, True), (PAUSE, CANCEL, True), (CANCEL, CANCEL, True),
    (RUN, PAUSE, True), (PAUSE, PAUSE, True), (CANCEL, PAUSE, False),
    (RUN, RUN, True), (PAUSE, RUN, True), (CANCEL, RUN, False),
]  # fmt: skip
"""What was desired, what is asked for now, and whether it is granted: a cancel is final."""


def request(database: Database, experiment_id: str, desired: DesiredState) -> Status | None:
    with database.transaction() as session:
        return states.request(session, experiment_id, desired)


@pytest.fixture
def other(database: Database) -> str:
    """An experiment that no one asks anything of."""
    return submitted(database)


@pytest.mark.parametrize(("status", "desired", "becomes"), AT_ONCE)
def test_what_waits_is_changed_at_once(
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
def test_no_change_that_the_state_does_not_allow(
    database: Database, other: str, status: Status, desired: DesiredState
) -> None:
    experiment_id = submitted(database)
    change(database, experiment_id, status=status)
    assert request(database, experiment_id, desired) is None
    assert row(database, experiment_id).status == status
    assert status_events(database, experiment_id) == [{"status": "queued"}]


@pytest.mark.parametrize(("desired", "asked", "granted"), OF_A_RUN)
def test_a_run_is_told_and_a_cancel_is_not_taken_back(
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


def test_nothing_is_granted_of_what_is_not_there(database: Database, other: str) -> None:
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


def test_what_is_paused_for_ever_fills_no_disk(
    either: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest of what it has become are kept, and its log."""
    monkeypatch.setattr(states, "MOST_STATUSES", 5)
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
        assert len(store.logs(session, claim.experiment_id, 0, None, 9)) == 1
