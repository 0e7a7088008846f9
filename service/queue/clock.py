"""Repair of what a clock that was set back would keep for too long."""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.tables.engine import now
from service.tables.experiments import Experiment, Status
from service.tables.workers import Worker


def repair(session: Session, lease_s: float) -> None:
    """Move times that lie ahead of the database's clock back to it, as it was set back meanwhile:
    else a run whose worker is gone would stay `running`, a lost dispatch `dispatched`, and a worker
    that is gone listed, until the clock is there again. Rows that another transaction holds are
    left alone. Commits nothing."""
    for column, latest, condition in (
        (Experiment.lease_expires_at, now() + lease_s, Experiment.status == Status.RUNNING),
        (Experiment.dispatched_at, now(), Experiment.status == Status.DISPATCHED),
        (Worker.heartbeat_at, now(), Worker.id.is_not(None)),
    ):
        table = column.class_
        ahead = select(table.id).where(condition, column > latest)
        change = update(table).where(table.id.in_(ahead.with_for_update(skip_locked=True)))
        session.execute(
            change.values({column.key: latest}).execution_options(synchronize_session=False)
        )
