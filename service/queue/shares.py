"""Standings of the users and the projects: their usage and limits, with Slurm's terms.

Every function takes a session and commits nothing.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from service.accounts.models import OWN, Project, ProjectMember, User
from service.db.engine import now
from service.experiments.models import Attempt, Experiment, Queue, Usage
from service.fair_share import FairShare
from service.queue.ledger import Member, gpu_hours_of_the_day
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
class Account:
    """A project, or a user's own account, at one moment. A user's own has no limits but the
    user's."""

    project: str | None
    """Name of the project; None: the user's own."""
    shares: int
    charged_s: float
    """Usage of all members, as of a `Standing`."""
    max_running: int | None = None
    running: int = 0
    max_gpu_hours: float | None = None
    gpu_hours: float = 0.0

    @property
    def is_at_limit(self) -> bool:
        return self.max_running is not None and self.running >= self.max_running

    @property
    def has_spent_gpu_hours(self) -> bool:
        return self.max_gpu_hours is not None and self.gpu_hours >= self.max_gpu_hours


@dataclass(frozen=True, slots=True)
class Level:
    """Usage for the shares on both levels of fair share."""

    account: tuple[int, int]
    of_account: float
    in_account: float
    """Usage of the member in the account."""

    @property
    def order(self) -> tuple[float, float]:
        """Order in which members have their turns."""
        return self.of_account, self.in_account

    def is_below(self, other: "Level") -> bool:
        """Return whether a member comes before another: of two accounts the one with less usage, in
        one account the member with less."""
        if self.account == other.account:
            return self.in_account < other.in_account
        return self.of_account < other.of_account


@dataclass(frozen=True, slots=True)
class Standing:
    """A user in one account at one moment. Usage is in decayed slot-seconds of a CPU slot."""

    owner_id: int
    project_id: int
    account: Account
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
    """Decayed usage in the account, with current runs charged in advance: what claims compare."""
    under_way: Mapping[Queue, int]
    """Runs in all accounts on the workers of each queue."""

    @property
    def member(self) -> Member:
        return Member(self.owner_id, self.project_id)

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
        disabled, and no limit of the user or the project is reached."""
        return not self.account.is_at_limit and self.may_begin_if_project_may(queue)

    def may_begin_if_project_may(self, queue: Queue) -> bool:
        """Return whether another run of this user may start on such a worker as soon as the project
        has a place left."""
        if self.is_disabled or self.is_at_limit:
            return False
        return not (queue == Queue.GPU and self._has_spent_gpu_hours)

    def could_begin(self, queue: Queue) -> bool:
        """Return whether a run of this user may start on such a worker once others of its own have
        ended."""
        spent = queue == Queue.GPU and self._has_spent_gpu_hours
        return not (self.is_disabled or 0 in (self.max_running, self.account.max_running) or spent)

    @property
    def has_one_place(self) -> bool:
        """Return whether one more run may start, also on a GPU worker."""
        limits = [(self.max_running, self.running)]
        limits += [(self.account.max_running, self.account.running)]
        left = min(math.inf if most is None else most - running for most, running in limits)
        return left == 1 and not self._has_spent_gpu_hours

    @property
    def _has_spent_gpu_hours(self) -> bool:
        return self.has_spent_gpu_hours or self.account.has_spent_gpu_hours


def share_of(owner_id: int, standings: list[Standing], submitters: Collection[int]) -> Share:
    """Return the share of a user's own account. Users share the server if they may submit and have
    submitted or used something; the user itself counts if it may submit. Projects share it if they
    have used something. All use counts, whoever it was."""
    mine = next(one for one in standings if one.member == Member(owner_id))
    return _share(mine.account, standings, {*submitters, owner_id}, mine.may_submit)


def share_of_project(
    project_id: int, standings: list[Standing], submitters: Collection[int]
) -> Share:
    """Return a project's share."""
    mine = next(one.account for one in standings if one.project_id == project_id)
    return _share(mine, standings, submitters)


def _share(
    mine: Account,
    standings: list[Standing],
    submitters: Collection[int],
    may_submit: bool = True,
) -> Share:
    sharers = [
        one.account
        for one in standings
        if one.project_id == OWN
        and one.may_submit
        and (one.charged_s or one.owner_id in submitters)
    ]
    projects = {one.project_id: one.account for one in standings if one.project_id != OWN}
    sharers += [one for one in projects.values() if one is mine or one.charged_s]
    norm_shares = mine.shares / sum(one.shares for one in sharers) if may_submit else 0.0
    all_usage_s = math.fsum(one.charged_s for one in standings)
    effectv_usage = mine.charged_s / all_usage_s if all_usage_s else 0.0
    behind = sum(one.charged_s / one.shares >= mine.charged_s / mine.shares for one in sharers)
    return Share(
        raw_shares=mine.shares,
        norm_shares=norm_shares,
        raw_usage=mine.charged_s,
        effectv_usage=effectv_usage,
        level_fs=norm_shares / effectv_usage if effectv_usage else None,
        fair_share=behind / len(sharers) if may_submit else 0.0,
    )


def submitters(session: Session) -> set[int]:
    """Return the users that have experiments."""
    has_submitted = exists().where(EXPERIMENTS.c.owner_id == _USERS.c.id)
    return {*session.scalars(select(_USERS.c.id).where(has_submitted))}


def levels(standings: Iterable[Standing], to_come_s: Mapping[Member, float]) -> dict[Member, Level]:
    """Return the usage for the shares of all members, with what current runs will still use."""
    of_account = defaultdict[tuple[int, int], float](float)
    for member, seconds in to_come_s.items():
        of_account[member.account] += seconds
    return {
        (member := one.member): Level(
            account=member.account,
            of_account=(one.account.charged_s + of_account[member.account]) / one.account.shares,
            in_account=(one.charged_s + to_come_s.get(member, 0.0)) / one.shares,
        )
        for one in standings
    }


def standings(session: Session, fair_share: FairShare) -> list[Standing]:
    """Return the standings of all users in their own accounts, then in their projects."""
    under_way: dict[int, Counter[Queue]] = defaultdict(Counter)
    running = Counter[int]()
    for owner_id, project_id, queue, number in session.execute(_UNDER_WAY):
        under_way[owner_id][Queue(queue or Queue.CPU)] += number
        running[project_id] += number
    rows = session.execute(_STANDINGS).all()
    hours_count = fair_share.max_gpu_hours_a_day is not None or any(
        row.max_gpu_hours_a_day is not None for row in rows
    )
    gpu_hours = gpu_hours_of_the_day(session) if hours_count else {}
    own = [
        _standing(row, None, under_way[row.id], gpu_hours.get(row.id, 0.0), fair_share)
        for row in rows
    ]
    memberships = session.execute(_IN_PROJECTS).all()
    accounts = _project_accounts(session, memberships, running, fair_share)
    by_id = {row.id: row for row in rows}
    return own + [
        _standing(
            by_id[one.user_id], one, under_way[one.user_id], gpu_hours.get(one.user_id, 0.0),
            fair_share, accounts[one.project_id],
        )
        for one in memberships
    ]  # fmt: skip


def _project_accounts(
    session: Session, memberships: Collection[Any], running: Counter[int], fair_share: FairShare
) -> dict[int, Account]:
    if not memberships:
        return {}
    used = defaultdict[int, list[float]](list)
    for one in memberships:
        used[one.project_id].append(_charged_s(one, fair_share))
    projects = session.execute(select(_PROJECTS)).all()
    hours_count = any(project.max_gpu_hours_a_day is not None for project in projects)
    gpu_hours = gpu_hours_of_the_day(session, Attempt.project_id) if hours_count else {}
    return {
        project.id: Account(
            project=project.name,
            shares=project.shares,
            charged_s=math.fsum(used[project.id]),
            max_running=project.max_running,
            running=running[project.id],
            max_gpu_hours=project.max_gpu_hours_a_day,
            gpu_hours=gpu_hours.get(project.id, 0.0),
        )
        for project in projects
    }


def _charged_s(usage: Any, fair_share: FairShare) -> float:
    age_s = usage.clock - usage.as_of if usage.as_of else 0.0
    return fair_share.decayed(usage.charged_s, age_s) if usage.as_of else 0.0


def _standing(
    row: Any,
    membership: Any | None,
    under_way: Mapping[Queue, int],
    gpu_hours: float,
    fair_share: FairShare,
    account: Account | None = None,
) -> Standing:
    max_running, max_gpu_hours = row.max_running, row.max_gpu_hours_a_day
    charged_s = _charged_s(membership or row, fair_share)
    return Standing(
        owner_id=row.id,
        project_id=OWN if membership is None else membership.project_id,
        account=account or Account(None, row.shares, charged_s),
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
_USERS, _USAGE, EXPERIMENTS, _PROJECTS, _MEMBERS = (
    _TABLES[one.__tablename__] for one in (User, Usage, Experiment, Project, ProjectMember)
)


_OF_RUNS = (EXPERIMENTS.c.owner_id, EXPERIMENTS.c.project_id, EXPERIMENTS.c.queue)
_UNDER_WAY = (
    select(*_OF_RUNS, func.count())
    .where(EXPERIMENTS.c.status == Status.RUNNING)
    .group_by(*_OF_RUNS)
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
    .outerjoin(_USAGE, (_USAGE.c.owner_id == _USERS.c.id) & (_USAGE.c.project_id == OWN))
    .order_by(_USERS.c.id)
)
_IN_PROJECTS = (
    select(
        _MEMBERS.c.user_id,
        _MEMBERS.c.project_id,
        now().label("clock"),
        _USAGE.c.charged_s,
        _USAGE.c.as_of,
    )
    .outerjoin(
        _USAGE,
        (_USAGE.c.owner_id == _MEMBERS.c.user_id) & (_USAGE.c.project_id == _MEMBERS.c.project_id),
    )
    .order_by(_MEMBERS.c.project_id, _MEMBERS.c.user_id)
)
