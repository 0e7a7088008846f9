"""Repair of times that lie in the future because the clock was set back."""

from sqlalchemy import Float, bindparam, exists, or_, select, update
from sqlalchemy.orm import Session

from service.db.engine import now
from service.experiments.models import Experiment
from service.vocabulary import Status
from service.workers.models import Worker

LEASE_S = bindparam("lease_s", type_=Float)
_LATEST = (
    (Experiment.lease_expires_at, now() + LEASE_S, Experiment.status == Status.RUNNING),
    (Worker.heartbeat_at, now(), Worker.id.is_not(None)),
    (Worker.looked_at, now(), Worker.id.is_not(None)),
)
"""Columns, the latest time that they may contain, and the rows that are looked at."""
_IS_AHEAD = select(
    or_(*(exists().where(condition, column > latest) for column, latest, condition in _LATEST))
)


def repair(session: Session, lease_s: float) -> None:
    """Replace times that lie in the future by the time of the database, whose clock was set back.
    Otherwise a lost run would stay `running` and a lost worker listed until the clock reaches these
    times. Rows that another transaction has locked are skipped. Commits nothing."""
    if not session.scalar(_IS_AHEAD, {"lease_s": lease_s}):
        return
    for column, latest, condition in _LATEST:
        table = column.class_
        ahead = select(table.id).where(condition, column > latest)
        change = update(table).where(table.id.in_(ahead.with_for_update(skip_locked=True)))
        values = change.values({column.key: latest})
        session.execute(values.execution_options(synchronize_session=False), {"lease_s": lease_s})
