"""The ledger of slots: which attempts used one, and how much of that use still counts.

The use of a slot from a to b with the weight w counts at the time t as the integral over u from a
to b of w 2^(−(t−u)/h), where h is the half-life. So a running attempt counts from its start, and
usage does not jump at its end. Lines are only added and ended. Every few seconds they are folded
into two numbers for each member of an account, which claims compare. Every function takes a session
and commits nothing.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlalchemy import case, func, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.accounts.models import OWN
from service.db.engine import insert_new, now
from service.experiments.models import Attempt, Queue, Usage
from service.fair_share import FairShare
from service.queue.statistics import add_to_totals
from service.queue.workers import lock_claims

FOLDED_AT_ONCE = 1000
HOUR_S, DAY_S = 3600.0, 86_400.0


class Member(NamedTuple):
    """A user in an account, to which slots are charged: a project, or the user's own."""

    owner_id: int
    project_id: int = OWN

    @property
    def account(self) -> tuple[int, int]:
        """Key of the account: equal for all members of a project."""
        return (0, self.project_id) if self.project_id else (self.owner_id, OWN)


@dataclass(frozen=True, slots=True)
class Use:
    """A use of a slot. `ended_at` is None while it lasts."""

    owner_id: int
    queue: str
    started_at: float
    ended_at: float | None
    project_id: int = OWN

    @property
    def member(self) -> Member:
        return Member(self.owner_id, self.project_id)

    def decayed(self, fair_share: FairShare, at: float) -> float:
        """Return the decayed slot-seconds at that time, in seconds of a CPU slot."""
        ended_at = at if self.ended_at is None else self.ended_at
        lasted_s = max(0.0, ended_at - self.started_at)
        grown = -math.expm1(-lasted_s * math.log(2) / fair_share.half_life_s)
        in_full = grown * fair_share.half_life_s / math.log(2)
        return slot_weight(fair_share, self.queue) * fair_share.decayed(in_full, at - ended_at)


def slot_weight(fair_share: FairShare, queue: str) -> float:
    """Return the weight of a second of such a slot."""
    return fair_share.gpu_weight if queue == Queue.GPU else 1.0


def end(
    session: Session,
    experiment_id: str,
    attempt: int,
    outcome: str,
    at: float | None = None,
    peak_bytes: int | None = None,
) -> None:
    """End an attempt and its use of its slot, now or at a given time."""
    ended_at = (
        now() if at is None else case((Attempt.started_at > at, Attempt.started_at), else_=at)
    )
    session.execute(
        update(Attempt)
        .where(
            Attempt.experiment_id == experiment_id,
            Attempt.attempt == attempt,
            Attempt.ended_at.is_(None),
        )
        .values(ended_at=ended_at, outcome=outcome, peak_bytes=peak_bytes)
    )


def fold(session: Session, fair_share: FairShare) -> int:
    """Settle ended attempts, add them to the totals, and charge current ones for their time so far,
    at least for `advance_s`. Claims, which charge too, wait meanwhile. Rows locked by other
    transactions, and those beyond FOLDED_AT_ONCE, are left for the next time. Return how many
    attempts were settled."""
    lock_claims(session)
    ended = session.scalars(
        select(Attempt)
        .where(Attempt.folded.is_(False), Attempt.ended_at.is_not(None))
        .limit(FOLDED_AT_ONCE)
        .with_for_update(skip_locked=True)
    ).all()
    settled, current = defaultdict[Member, list[Use]](list), defaultdict[Member, list[Use]](list)
    for attempt in ended:
        attempt.folded = True
        settled[(use := use_of(attempt)).member].append(use)
    is_current = (Attempt.folded.is_(False), Attempt.ended_at.is_(None))
    for attempt in session.scalars(select(Attempt).where(*is_current)):
        current[(use := use_of(attempt)).member].append(use)
    members = {*settled, *current}
    nothing = {"settled_s": 0.0, "charged_s": 0.0, "as_of": 0.0}
    insert_new(session, Usage, [{**one._asdict(), **nothing} for one in sorted(members)])
    clock: float = session.execute(select(now())).scalar_one()
    owners = {one.owner_id for one in members}
    for usage in session.scalars(select(Usage).where(Usage.owner_id.in_(owners))):
        if (member := Member(usage.owner_id, usage.project_id)) not in members:
            continue
        before = fair_share.decayed(usage.settled_s, clock - usage.as_of)
        usage.settled_s = before + decayed_usage(fair_share, settled[member], clock)
        advance = [_in_advance(use, fair_share, clock) for use in current[member]]
        usage.charged_s = usage.settled_s + decayed_usage(fair_share, advance, clock)
        usage.as_of = clock
    add_to_totals(session, ended)
    return len(ended)


def _in_advance(use: Use, fair_share: FairShare, clock: float) -> Use:
    """Charge a current run for a minimum time. Otherwise many runs that start at once would count
    nothing."""
    return replace(use, started_at=min(use.started_at, clock - fair_share.advance_s))


def gpu_hours_of_the_day(
    session: Session, by: InstrumentedAttribute[int] = Attempt.owner_id
) -> dict[int, float]:
    """Return the hours of GPU slots within the last 24 hours of each user, or by another column of
    the ledger."""
    clock: float = session.execute(select(now())).scalar_one()
    since = clock - DAY_S
    began_at = case((Attempt.started_at < since, since), else_=Attempt.started_at)
    lasted_s = func.sum(func.coalesce(Attempt.ended_at, clock) - began_at)
    rows = session.execute(
        select(by, lasted_s)
        .where(Attempt.queue == Queue.GPU)
        .where(Attempt.ended_at.is_(None) | (Attempt.ended_at > since))
        .group_by(by)
    )
    return {id: seconds / HOUR_S for id, seconds in rows}


def decayed_usage(fair_share: FairShare, uses: Iterable[Use], at: float) -> float:
    """Return the total decayed usage."""
    return math.fsum(use.decayed(fair_share, at) for use in uses)


def use_of(line: Attempt) -> Use:
    """Return the use of a slot that a line of the ledger records."""
    return Use(line.owner_id, line.queue, line.started_at, line.ended_at, line.project_id)
