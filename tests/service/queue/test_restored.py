"""Runs that were active when a backup was made, in the restored database."""

import time

import pytest
from sqlalchemy import select

from service.db.engine import Database
from service.experiments.models import Attempt
from service.queue import lease
from service.queue.lease import BEYOND
from service.vocabulary import DesiredState, Status
from tests.support.attempts import claimed, submitted
from tests.support.stored import change, row, status_events

RAN_UNTIL = 2e9
"""End of the lease of a run that began before the backup."""


def begin_anew(database: Database) -> int:
    with database.transaction() as session:
        return lease.begin_anew(session)


@pytest.mark.parametrize(
    ("desired", "becomes"), [("run", "queued"), ("pause", "paused"), ("cancel", "cancelled")]
)
def test_restored_running_experiments_follow_the_desired_state(
    database: Database, desired: str, becomes: str
) -> None:
    """Its slot counts until its lease was over."""
    claim = claimed(database)
    columns = {"desired_state": DesiredState(desired), "lease_expires_at": RAN_UNTIL}
    change(database, claim.experiment_id, **columns)
    assert begin_anew(database) == 1
    found = row(database, claim.experiment_id)
    assert (found.status, found.lost, found.lease_expires_at) == (becomes, 0, None)
    if becomes == "cancelled":
        assert found.finished_at == pytest.approx(time.time(), abs=60)
    else:
        assert found.finished_at is None
    assert found.attempt == (1 if becomes == "cancelled" else 1 + BEYOND)
    told = {"status": becomes, "restored": True}
    assert status_events(database, claim.experiment_id)[2:] == [told]
    with database.snapshot() as session:
        assert session.scalars(select(Attempt.ended_at)).all() == [RAN_UNTIL]


@pytest.mark.parametrize(
    ("status", "raised"),
    [("queued", BEYOND), ("paused", BEYOND), ("succeeded", 0), ("failed", 0), ("cancelled", 0)],
)
def test_other_restored_experiments_are_unchanged(
    database: Database, status: str, raised: int
) -> None:
    """Runnable experiments get numbers that earlier workers do not know."""
    experiment_id = submitted(database)
    change(database, experiment_id, status=Status(status), attempt=3)
    assert begin_anew(database) == 0
    found = row(database, experiment_id)
    assert (found.status, found.attempt) == (status, 3 + raised)
    assert found.finished_at is None
    assert len(status_events(database, experiment_id)) == 1
