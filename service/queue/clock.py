"""Repair of times that lie in the future because the clock was set back."""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.tables.engine import now
from service.tables.experiments import Experiment, Status
from service.tables.helpers import Help
from service.tables.workers import Worker


def repair(session: Session, lease_s: float) -> None:
    """Replace times that lie in the future by the time of the database, whose clock was set back.
    Otherwise a lost run would stay `running`, a lost dispatch `dispatched`, and a lost worker
    listed, until the clock reaches these times. Rows that another transaction has locked are
    skipped. Commits nothing."""
    for column, latest, condition in (
        (Experiment.lease_expires_at, now() + lease_s, Experiment.status == Status.RUNNING),
        (Experiment.dispatched_at, now(), Experiment.status == Status.DISPATCHED),
        (Worker.heartbeat_at, now(), Worker.id.is_not(None)),
        (Help.dispatched_at, now(), Help.ended_at.is_(None)),
        (Help.lease_expires_at, now() + lease_s, Help.ended_at.is_(None)),
    ):
        table = column.class_
        ahead = select(table.id).where(condition, column > latest)
        change = update(table).where(table.id.in_(ahead.with_for_update(skip_locked=True)))
        session.execute(
            change.values({column.key: latest}).execution_options(synchronize_session=False)
        )
