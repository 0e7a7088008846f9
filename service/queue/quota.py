"""Limits of a user: unfinished experiments, priority, and bytes in the store.

Every transaction that stores or deletes bytes of a user adds a row with the change. Rows are
inserted and folded, never updated, so that no run or submission waits for another one here.
Checkpoints are few and come and go, so their sizes are added up when they are asked for.
"""

from collections import defaultdict
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from sqlalchemy import Select, delete, func, insert, select
from sqlalchemy.orm import Session

from service.accounts.models import User
from service.experiments.models import UNFINISHED, Checkpoint, Experiment
from service.fair_share import FairShare
from service.queue.claims import MAX_PRIORITY
from service.queue.models import ByteChange
from service.refusals import ApiError

FOLDED_FROM = 20
"""Minimum number of rows of a user that are folded."""
FOLDED_AT_ONCE = 5000
"""Maximum number of rows that are folded at once."""


_KEPT = func.coalesce(func.sum(ByteChange.bytes), 0)
_SAVED = func.coalesce(func.sum(Checkpoint.bytes), 0)


def note(session: Session, owner_id: int, change: int) -> None:
    """Count bytes that this transaction stores for a user, or fewer than 0 that it deletes."""
    if change:
        session.execute(insert(ByteChange).values(owner_id=owner_id, bytes=change))


def kept(session: Session, owner_id: int) -> int:
    """Return how many bytes a user keeps."""
    counted = select(_KEPT).where(ByteChange.owner_id == owner_id).scalar_subquery()
    saved = _checkpoints(_SAVED).where(Experiment.owner_id == owner_id).scalar_subquery()
    return int(session.execute(select(counted + saved)).scalar_one())


def kept_by_user(session: Session) -> dict[int, int]:
    """Return how many bytes each user keeps; users without any may be missing."""
    counted = select(ByteChange.owner_id, _KEPT).group_by(ByteChange.owner_id)
    saved = _checkpoints(Experiment.owner_id, _SAVED).group_by(Experiment.owner_id)
    found: dict[int, int] = defaultdict(int)
    for owner_id, total in (*session.execute(counted), *session.execute(saved)):
        found[owner_id] += int(total)
    return found


def _checkpoints(*columns: Any) -> Select[Any]:
    """Select the checkpoints of unfinished experiments. Checkpoints of others are deleted soon."""
    return (
        select(*columns)
        .join_from(Experiment, Checkpoint, Checkpoint.experiment_id == Experiment.id)
        .where(Experiment.status.in_(UNFINISHED))
    )


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a user keeps, and the limit."""

    kept: int
    expected: int
    """Points that the user's unfinished experiments write at most."""
    most: int | None

    def holds(self, needed: int) -> bool:
        """Return whether there is room for `needed` more bytes."""
        return self.most is None or self.kept + self.expected + needed <= self.most

    def check(self, needed: int) -> None:
        """Raise ApiError if `needed` more bytes are too many."""
        if self.holds(needed):
            return
        unfinished = f", your unfinished experiments may write {self.expected} more"
        detail = (
            f"you keep {self.kept} bytes{unfinished if self.expected else ''}, this needs "
            f"{needed}, and your limit is {self.most} (max_bytes): delete data sets, experiments "
            "or sweeps (deleted experiments and sweeps count until the service purges them), or "
            "ask an administrator for a higher limit: mpt admin user set NAME --max-bytes BYTES"
        )
        raise ApiError(HTTPStatus.CONFLICT, "storage_quota", detail)


def limit(session: Session, owner_id: int, fair_share: FairShare) -> int | None:
    """Return how many bytes a user may keep; None without a limit."""
    own = session.scalar(select(User.max_bytes).where(User.id == owner_id))
    return fair_share.max_bytes if own is None else own


UNLIMITED = Room(0, 0, None)


def room_of(session: Session, owner_id: int, fair_share: FairShare) -> Room:
    """Return the stored bytes of a user and their limit. Without a limit the sums are not
    computed."""
    if (most := limit(session, owner_id, fair_share)) is None:
        return UNLIMITED
    expected = select(func.coalesce(func.sum(Experiment.expected_bytes), 0)).where(
        Experiment.owner_id == owner_id, Experiment.status.in_(UNFINISHED)
    )
    return Room(kept(session, owner_id), int(session.execute(expected).scalar_one()), most)


def check_limits(
    session: Session,
    owner_id: int,
    priority: int,
    more: int,
    fair_share: FairShare,
    needed: int = 0,
) -> None:
    """Raises ApiError if a user may not have `more` experiments, which need `needed` bytes.
    Submissions of one user pass here one at a time, so that two do not both take the last place.
    """
    check_priority(session, owner_id, priority)
    check_number(session, owner_id, fair_share, more)
    check_bytes(session, owner_id, fair_share, needed)


def check_number(session: Session, owner_id: int, fair_share: FairShare, more: int) -> None:
    """Check that a user may have this number of additional unfinished experiments. Raises
    ApiError."""
    count, most = submitted_of(session, owner_id, fair_share)
    if count + more > most:
        asked = "" if more == 1 else f"; these are {more} more"
        detail = f"{count} of your experiments have not ended, and your limit is {most}{asked}"
        raise ApiError(HTTPStatus.CONFLICT, "limit_reached", detail)


def check_bytes(session: Session, owner_id: int, fair_share: FairShare, needed: int) -> None:
    """Check that a user may store this number of additional bytes. Raises ApiError."""
    room_of(session, owner_id, fair_share).check(needed)


def check_priority(session: Session, owner_id: int, priority: int) -> None:
    """Raises ApiError if the owner may not use this priority. Locks the user's row."""
    may_jump = session.scalar(
        select(User.may_jump).where(User.id == owner_id).with_for_update(key_share=True)
    )
    if priority > MAX_PRIORITY and not may_jump:
        detail = f"a priority above {MAX_PRIORITY} jumps the queue: an administrator allows it"
        raise ApiError(HTTPStatus.FORBIDDEN, "may_not_jump", detail)


def submitted_of(session: Session, owner_id: int, fair_share: FairShare) -> tuple[int, int]:
    """Return how many experiments of a user have not ended, and the limit."""
    own = session.scalar(select(User.max_submitted).where(User.id == owner_id))
    mine = select(func.count()).where(
        Experiment.owner_id == owner_id, Experiment.status.in_(UNFINISHED)
    )
    return session.scalar(mine) or 0, fair_share.max_submitted if own is None else own


def lock(session: Session, owner_id: int) -> None:
    """Make other submissions and uploads of the user wait until the transaction ends. Heartbeats do
    not wait for this lock."""
    session.execute(select(User.id).where(User.id == owner_id).with_for_update(key_share=True))


def fold(session: Session, from_rows: int = FOLDED_FROM) -> None:
    """Replace the rows of each user that has many by one row with their sum. Rows that another
    transaction holds are left for the next time."""
    many = (
        select(ByteChange.owner_id)
        .group_by(ByteChange.owner_id)
        .having(func.count() >= from_rows)
        .scalar_subquery()
    )
    rows = session.execute(
        select(ByteChange.id, ByteChange.owner_id, ByteChange.bytes)
        .where(ByteChange.owner_id.in_(many))
        .limit(FOLDED_AT_ONCE)
        .with_for_update(skip_locked=True)
    ).all()
    totals: dict[int, int] = defaultdict(int)
    for _, owner_id, change in rows:
        totals[owner_id] += change
    session.execute(delete(ByteChange).where(ByteChange.id.in_([row.id for row in rows])))
    for owner_id, total in totals.items():
        note(session, owner_id, total)
