"""Standings of the users: their usage and limits, with Slurm's terms.

Every function takes a session and commits nothing.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from service.accounts.models import User
from service.db.engine import now
from service.experiments.models import Experiment, Queue, Usage
from service.fair_share import FairShare
from service.queue.ledger import gpu_hours_of_the_day
from service.queue.schemas import Share
from service.vocabulary import ROLE_SCOPES, Role, Scope, Status


@dataclass(frozen=True, slots=True)
class First:
    """The next experiment of a user for one device."""

    priority: int
    id: str

    @property
    def order(self) -> tuple[int, str]:
        """Order among a user's own experiments: priority, then age."""
        return -self.priority, self.id


@dataclass(frozen=True, slots=True)
class Standing:
    """A user at one moment. Usage is in decayed slot-seconds of a CPU slot."""

    owner_id: int
    name: str
    shares: int
    is_disabled: bool
    may_submit: bool
    """True if the user may have experiments: it is neither disabled nor a viewer."""
    may_jump: bool
    """True if experiments with a priority above MAX_PRIORITY start before those of all users."""
    max_running: int | None
    max_gpu_hours: float | None
    gpu_hours: float
    """Hours of GPU slots within the last 24 hours, not decayed; 0 if no user has such a limit."""
    charged_s: float
    """Decayed usage, with current runs charged in advance: what claims compare."""
    under_way: Mapping[Queue, int]
    """Runs on the workers of each queue."""

    @property
    def running(self) -> int:
        """Runs under way on all workers."""
        return sum(self.under_way.values())

    @property
    def is_at_limit(self) -> bool:
        return self.max_running is not None and self.running >= self.max_running

    @property
    def has_spent_gpu_hours(self) -> bool:
        return self.max_gpu_hours is not None and self.gpu_hours >= self.max_gpu_hours

    def may_begin(self, queue: Queue) -> bool:
        """Return whether another run of this user may start on such a worker: the user is not
        disabled, and no limit is reached."""
        if self.is_disabled or self.is_at_limit:
            return False
        return not (queue == Queue.GPU and self.has_spent_gpu_hours)

    def could_begin(self, queue: Queue) -> bool:
        """Return whether a run of this user may start on such a worker once others of its own have
        ended."""
        spent = queue == Queue.GPU and self.has_spent_gpu_hours
        return not (self.is_disabled or self.max_running == 0 or spent)

    @property
    def has_one_place(self) -> bool:
        """Return whether one more run may start, also on a GPU worker."""
        has_one = self.max_running is not None and self.running + 1 == self.max_running
        return has_one and not self.has_spent_gpu_hours


def share_of(owner_id: int, standings: list[Standing], submitters: Collection[int]) -> Share:
    """Return a user's share. Users share the server if they may submit and have submitted or used
    something; the user itself counts if it may submit. All use counts, whoever it was."""
    mine = next(one for one in standings if one.owner_id == owner_id)
    sharers = [
        one
        for one in standings
        if one.may_submit and (one is mine or one.charged_s or one.owner_id in submitters)
    ]
    norm_shares = mine.shares / sum(one.shares for one in sharers) if mine.may_submit else 0.0
    all_usage_s = math.fsum(one.charged_s for one in standings)
    effectv_usage = mine.charged_s / all_usage_s if all_usage_s else 0.0
    behind = sum(one.charged_s / one.shares >= mine.charged_s / mine.shares for one in sharers)
    return Share(
        raw_shares=mine.shares,
        norm_shares=norm_shares,
        raw_usage=mine.charged_s,
        effectv_usage=effectv_usage,
        level_fs=norm_shares / effectv_usage if effectv_usage else None,
        fair_share=behind / len(sharers) if mine.may_submit else 0.0,
    )


def submitters(session: Session) -> set[int]:
    """Return the users that have experiments."""
    has_submitted = exists().where(EXPERIMENTS.c.owner_id == _USERS.c.id)
    return {*session.scalars(select(_USERS.c.id).where(has_submitted))}


def standings(session: Session, fair_share: FairShare) -> list[Standing]:
    """Return the standings of all users."""
    under_way: dict[int, Counter[Queue]] = defaultdict(Counter)
    for owner_id, queue, number in session.execute(_UNDER_WAY):
        under_way[owner_id][Queue(queue or Queue.CPU)] += number
    rows = session.execute(_STANDINGS).all()
    hours_count = fair_share.max_gpu_hours_a_day is not None or any(
        row.max_gpu_hours_a_day is not None for row in rows
    )
    gpu_hours = gpu_hours_of_the_day(session) if hours_count else {}
    return [
        _standing(row, under_way[row.id], gpu_hours.get(row.id, 0.0), fair_share) for row in rows
    ]


def _standing(
    row: Any, under_way: Mapping[Queue, int], gpu_hours: float, fair_share: FairShare
) -> Standing:
    max_running, max_gpu_hours = row.max_running, row.max_gpu_hours_a_day
    charged_s = fair_share.decayed(row.charged_s, row.clock - row.as_of) if row.as_of else 0.0
    return Standing(
        owner_id=row.id,
        name=row.name,
        shares=row.shares,
        is_disabled=row.disabled_at is not None,
        may_submit=row.disabled_at is None and Scope.SUBMIT in ROLE_SCOPES[Role(row.role)],
        may_jump=row.may_jump,
        max_running=fair_share.max_running if max_running is None else max_running,
        max_gpu_hours=fair_share.max_gpu_hours_a_day if max_gpu_hours is None else max_gpu_hours,
        gpu_hours=gpu_hours,
        charged_s=charged_s,
        under_way=under_way,
    )


# Tables, not classes: the ORM needs more time for a statement than the database does.
_TABLES = User.metadata.tables
_USERS, _USAGE, EXPERIMENTS = (_TABLES[one.__tablename__] for one in (User, Usage, Experiment))


_UNDER_WAY = (
    select(EXPERIMENTS.c.owner_id, EXPERIMENTS.c.queue, func.count())
    .where(EXPERIMENTS.c.status == Status.RUNNING)
    .group_by(EXPERIMENTS.c.owner_id, EXPERIMENTS.c.queue)
)
_STANDINGS = (
    select(
        _USERS.c.id,
        _USERS.c.name,
        _USERS.c.shares,
        _USERS.c.role,
        _USERS.c.disabled_at,
        _USERS.c.may_jump,
        _USERS.c.max_running,
        _USERS.c.max_gpu_hours_a_day,
        now().label("clock"),
        _USAGE.c.charged_s,
        _USAGE.c.as_of,
    )
    .outerjoin(_USAGE, _USAGE.c.owner_id == _USERS.c.id)
    .order_by(_USERS.c.id)
)
