"""Runs that give way, so that users share the slots over time.

If an experiment waits only for a slot, a run that has had its slice and whose account has more
usage for its shares saves a checkpoint and returns to the queue. In a project, members are compared
in the same way by their usage in it. To an experiment of a project that has as many runs as it may
have, only runs of this project give way. No run gives way to an experiment of its own owner, in
whatever account. The controller decides which one every few seconds, and changes its mind if
another slot becomes free. Every function takes a session and commits nothing. Times are the
database's own (`now()`).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sqlalchemy import case, exists, select, text, update
from sqlalchemy.orm import Session, aliased

from service.accounts.models import OWN
from service.db.engine import now
from service.experiments.models import GAVE_WAY, STARTABLE, Attempt, Experiment, Queue
from service.fair_share import FairShare
from service.queue import shares
from service.queue.claims import (
    FAMILIES,
    FEW,
    MAX_BYTES,
    MAX_PRIORITY,
    OF_FAMILIES,
    Candidate,
    candidates,
    count_startable,
    gpu_run_is_first,
)
from service.queue.forecast import expected_end, mean_length_s
from service.queue.ledger import Member, slot_weight
from service.queue.rooms import Place
from service.queue.shares import Level
from service.vocabulary import DesiredState, Status
from service.workers.models import Worker

ENDS_SOON = 1 / 5
"""A run that is expected to end within this part of a slice is left to end, until it has lasted,
and the other one has waited, for a slice and this part."""
NEARLY_OVER = 1 / 100
"""A run that is expected to end within this part of a slice is left to end in any case."""
AT_ONCE_S = 60.0
"""Time that an experiment with a priority above everyone's waits for a run to end."""
UNDISTURBED = 1 / 4
"""Part of a slice that a run has at least after it gave way, whatever waits."""


@dataclass(frozen=True, slots=True)
class Run:
    """A current run as a candidate to give way. Times are in seconds."""

    experiment_id: str
    worker_id: str
    owner_id: int
    usage: Level
    """Usage for the shares of its account, and of its owner in that."""
    project_id: int
    jumps: bool
    """True if its priority is above everyone's."""
    lasted_s: float
    """Time since the start of its attempt."""
    left_s: float
    """Expected time to its end; infinite if it is unknown."""
    has_progressed: bool
    """False if this attempt has computed nothing new yet: then it has nothing to save."""
    gave_way_before: bool
    """True if its last attempt gave way."""
    gives_way_to: str | None
    """Experiment that it is already asked to give way to."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A user's next experiment for a queue. Times are in seconds, memory in bytes."""

    experiment_id: str
    owner_id: int
    usage: Level
    """Usage for the shares of its account, and of its owner in that."""
    jumps: bool
    is_next: bool
    """True if it is the next in turn: a worker keeps memory for it."""
    family: str
    memory_bytes: int
    waited_s: float
    """Time since it was submitted or its last attempt ended."""
    project_id: int = OWN
    project_places: float = math.inf
    """Number of runs that may still start under the project's limit. Without one, a run of the
    project has to end first."""

    @property
    def member(self) -> Member:
        return Member(self.owner_id, self.project_id)


def may_displace(waiting: Waiting, run: Run, slice_s: float) -> bool:
    """Return whether a run may have to give way to a waiting experiment that can use its slot."""
    if run.owner_id == waiting.owner_id or not run.has_progressed:
        return False
    is_late = min(run.lasted_s, waiting.waited_s) >= (1 + ENDS_SOON) * slice_s
    if run.left_s <= (NEARLY_OVER if is_late else ENDS_SOON) * slice_s:
        return False
    if waiting.jumps and not run.jumps:
        return not run.gave_way_before or run.lasted_s >= UNDISTURBED * slice_s
    is_before = waiting.jumps == run.jumps and waiting.usage.is_below(run.usage)
    return is_before and run.lasted_s >= slice_s


@dataclass(frozen=True, slots=True)
class Decision:
    """Changes of current runs, by the ids of experiments and workers."""

    gives_way_to: Mapping[str, str]
    """The experiment that each of these runs gives way to."""
    reserved_for: Mapping[str, str]
    """The experiment that each of these workers starts after its run."""


@dataclass
class Plan:
    """The runs of a queue that end or give way, chosen for one waiting experiment after the
    other."""

    slice_s: float
    places: Sequence[Place]
    """Workers that may start a run once theirs has ended."""
    runs: Mapping[str, Run]
    """Current runs by worker."""
    gives_way_to: dict[str, str] = field(default_factory=dict)
    reserved_for: dict[str, str] = field(default_factory=dict)
    """The experiment that each of these workers starts next."""
    members: dict[str, Member] = field(default_factory=dict)
    """The owners of these experiments, with the accounts."""
    ended: set[str] = field(default_factory=set)
    """Workers whose runs end soon or give way."""
    spoken_for: set[str] = field(default_factory=set)
    """Workers whose places or memory the experiments before need."""
    planned: dict[str, int] = field(default_factory=dict)
    """Memory for these experiments, by memory."""

    @property
    def is_full(self) -> bool:
        """True if no worker is left for another experiment that does not jump: none is idle, and
        no run ends soon or has had its slice."""
        runs = [
            self.runs.get(place.worker_id)
            for place in self.places
            if place.worker_id not in self.spoken_for
        ]
        soon_s = ENDS_SOON * self.slice_s
        return all(run and run.left_s > soon_s and run.lasted_s < self.slice_s for run in runs)

    def has_place(self, owner_id: int) -> bool:
        """Return whether an experiment of this user has a place yet."""
        return any(member.owner_id == owner_id for member in self.members.values())

    def _project_may_begin(self, waiting: Waiting, ending: Collection[Run]) -> bool:
        """Return whether one more run of its project may start after these and those before have
        ended."""
        begin = sum(member.project_id == waiting.project_id for member in self.members.values())
        ended = self.ended | {run.worker_id for run in ending}
        end = sum(self.runs[worker].project_id == waiting.project_id for worker in ended)
        return begin - end < waiting.project_places

    def serve(self, waiting: Waiting) -> bool:
        """Choose runs that make room for an experiment. Return whether that is possible."""
        ways = [
            (self._cost(waiting, ending), place, ending)
            for place in self.places
            if (ending := self._ending(waiting, place)) is not None
            and self._project_may_begin(waiting, ending)
        ]
        if not ways:
            if waiting.is_next:
                self._keep_memory(waiting)
            return False
        _, place, ending = min(ways, key=lambda way: way[0])
        self.reserved_for[place.worker_id] = waiting.experiment_id
        self.members[waiting.experiment_id] = waiting.member
        self.spoken_for |= {place.worker_id, *(run.worker_id for run in ending)}
        self.ended |= {run.worker_id for run in ending}
        for memory in place.memories:
            self.planned[memory.id] = self.planned.get(memory.id, 0) + waiting.memory_bytes
        for run in self._giving(waiting, ending):
            self.gives_way_to[run.experiment_id] = waiting.experiment_id
        return True

    def _keep_memory(self, waiting: Waiting) -> None:
        """Leave out the memory that workers keep for an experiment: of those that are short even
        after one run, the one that lacks the least."""
        needed = waiting.memory_bytes
        short = [
            (place.room_after({place.worker_id}), memory.id)
            for place in self.places
            if waiting.family in place.families and needed <= place.room_without_ours
            for memory in place.memories
            if memory.room_after({place.worker_id}) < needed
        ]
        if short:
            _, kept = max(short)
            self.places = [place for place in self.places if kept not in place.memory_ids]

    def _ending(self, waiting: Waiting, place: Place) -> list[Run] | None:
        """Return the runs that have to end before a worker can start an experiment; None if some
        of them continue. Runs of several workers end only for the next in turn, for which the
        workers keep the memory."""
        if place.worker_id in self.spoken_for or waiting.family not in place.families:
            return None
        run = self.runs.get(place.worker_id)
        if run is None and not place.is_idle:
            return None
        ending = [] if run is None else [run]
        if any(not self._ends(one, waiting) for one in ending):
            return None
        while (short := self._short_memory(place, waiting.memory_bytes, ending)) is not None:
            more = [
                one
                for worker, one in self.runs.items()
                if worker in short and one not in ending and self._ends(one, waiting)
            ]
            if not more or not waiting.is_next:
                return None
            ending.append(min(more, key=lambda one: self._cost(waiting, [one])))
        return ending

    def _short_memory(
        self, place: Place, needed: int, ending: Collection[Run]
    ) -> Collection[str] | None:
        """Return the workers with runs in a memory that still lacks room; None if all have it."""
        ended = self.ended | {run.worker_id for run in ending}
        if place.max_run < needed:
            return ()
        for memory in place.memories:
            if memory.room_after(ended) - self.planned.get(memory.id, 0) < needed:
                return memory.taken.keys() - self.ended
        return None

    def _ends(self, run: Run, waiting: Waiting) -> bool:
        soon_s = AT_ONCE_S if waiting.jumps else ENDS_SOON * self.slice_s
        return run.left_s <= soon_s or may_displace(waiting, run, self.slice_s)

    def _giving(self, waiting: Waiting, runs: Iterable[Run]) -> list[Run]:
        return [run for run in runs if may_displace(waiting, run, self.slice_s)]

    def _cost(self, waiting: Waiting, runs: Sequence[Run]) -> tuple[float, ...]:
        """Sort key: few runs that give way, those that are asked already, those of the
        accounts and the owners with the most usage, the longest."""
        giving = self._giving(waiting, runs)
        return (
            len(giving),
            sum(run.gives_way_to is None for run in giving),
            -sum(run.usage.of_account for run in giving),
            -sum(run.usage.in_account for run in giving),
            -sum(run.lasted_s for run in giving),
        )


def plan(
    waiting: Iterable[Iterable[Waiting]],
    runs: Sequence[Run],
    places: Sequence[Place],
    slice_s: float,
) -> Plan:
    """Return which runs of a queue give way, and which workers are reserved. `waiting` has the
    experiments of each member of an account that only wait for a place, the members in the order in
    which they are served. Each user gets one place, for the first experiment that can have one."""
    usable = [place for place in places if not place.store_full]
    chosen = Plan(slice_s, usable, {run.worker_id: run for run in runs})
    for of_user in waiting:
        jumps = False
        for one in of_user:
            jumps = jumps or one.jumps
            if chosen.has_place(one.owner_id) or chosen.serve(one):
                break
        if not jumps and chosen.is_full:  # a lab may have many more users than workers
            break
    return chosen


def choose_all(session: Session, fair_share: FairShare, all_places: Sequence[Place]) -> Decision:
    """Return which current runs give way, and which of their workers are reserved."""
    if not fair_share.slice_s:
        return Decision({}, {})
    gives_way_to: dict[str, str] = {}
    reserved_for: dict[str, str] = {}
    served: dict[str, Member] = {}  # the owners of experiments that have a place
    usable = [place for place in all_places if place.drained_until is None]
    for queue in (Queue.GPU, Queue.CPU):
        places = [place for place in usable if place.queue == queue]
        families = frozenset[str]().union(*(place.families for place in places))
        if not places or not count_startable(session, queue, families):
            continue
        clock: float = session.execute(select(now())).scalar_one()
        rows = session.execute(_RUNS.where(Experiment.queue == queue)).all()
        mean_s = mean_length_s(session, queue)
        left_s = {row.id: _left_s(row, mean_s, clock) for row in rows}
        users = _users(session, fair_share, queue, rows, left_s, clock)
        runs = [
            _run(row, users[Member(row.owner_id, row.project_id)], left_s[row.id], clock)
            for row in rows
        ]
        waiting = _waiting(session, queue, fair_share, usable, users, served, clock)
        chosen = plan(waiting, runs, places, fair_share.slice_s)
        served |= chosen.members
        gives_way_to |= chosen.gives_way_to
        reserved_for |= chosen.reserved_for
    busy = {place.worker_id for place in usable if not place.is_idle}
    return Decision(gives_way_to, {id: one for id, one in reserved_for.items() if id in busy})


def ask(session: Session, decision: Decision) -> None:
    """Ask these runs to give way, and no others, and reserve their workers. The workers learn it
    with the next heartbeat."""
    for row in session.execute(_ASKED.with_for_update(skip_locked=True, of=Experiment)).all():
        if row.gives_way_to != (other := decision.gives_way_to.get(row.id)):
            of_run = update(Experiment).where(Experiment.id == row.id)
            session.execute(of_run.values(gives_way_to=other))
        if row.reserved_for != (other := decision.reserved_for.get(row.worker_id)):
            free = select(Worker.id).where(Worker.id == row.worker_id)
            of_worker = update(Worker).where(Worker.id.in_(free.with_for_update(skip_locked=True)))
            session.execute(
                of_worker.values(reserved_for=other).execution_options(synchronize_session=False)
            )


def asked(session: Session) -> Decision:
    """Return which current runs are asked to give way, and which of their workers are reserved."""
    rows = session.execute(_ASKED).all()
    return Decision(
        {row.id: row.gives_way_to for row in rows if row.gives_way_to is not None},
        {row.worker_id: row.reserved_for for row in rows if row.reserved_for is not None},
    )


_ASKED = (
    select(
        Experiment.id, Experiment.gives_way_to, Worker.id.label("worker_id"), Worker.reserved_for
    )
    .join(Worker, Worker.id == Experiment.worker)
    .where(Experiment.status == Status.RUNNING)
)
_BEFORE = aliased(Attempt)
_RUNS = (
    select(
        Experiment.id,
        Experiment.owner_id,
        Experiment.project_id,
        Experiment.worker,
        Experiment.priority,
        Experiment.desired_state,
        Experiment.gives_way_to,
        Experiment.progress_done,
        Experiment.progress_total,
        Experiment.progress_at,
        Experiment.progress_eta_s,
        Attempt.attempt,
        Attempt.started_at,
        case(
            (
                exists().where(
                    _BEFORE.experiment_id == Attempt.experiment_id,
                    _BEFORE.attempt == Attempt.attempt - 1,
                    _BEFORE.outcome == GAVE_WAY,
                ),
                1,
            ),
            else_=0,
        ).label("gave_way_before"),
    )
    .join(
        Attempt,
        (Attempt.experiment_id == Experiment.id) & (Attempt.attempt == Experiment.attempt),
    )
    .where(Experiment.status == Status.RUNNING)
)


@dataclass(frozen=True, slots=True)
class _User:
    """A user in one account in the comparison of runs and waiting experiments."""

    usage: Level
    """Usage for the shares, in seconds of a CPU slot, with what current runs will use in their
    slices: nobody gets a second slot before those with hardly more usage have their first."""
    may_jump: bool

    def jumps(self, priority: int) -> bool:
        """Return whether an experiment of this priority comes before those of all users."""
        return self.may_jump and priority > MAX_PRIORITY


def _users(
    session: Session,
    fair_share: FairShare,
    queue: Queue,
    runs: Sequence[Any],
    left_s: Mapping[str, float],
    clock: float,
) -> dict[Member, _User]:
    """Return all users in all their accounts, given the current runs of a queue and the expected
    times to their ends."""
    to_come_s = defaultdict[Member, float](float)
    for run in runs:
        of_slice_s = max(0.0, run.started_at + fair_share.slice_s - clock)
        seconds = min(of_slice_s, left_s[run.id])
        to_come_s[Member(run.owner_id, run.project_id)] += slot_weight(fair_share, queue) * seconds
    standings = shares.standings(session, fair_share)
    levels = shares.levels(standings, to_come_s)
    return {one.member: _User(levels[one.member], one.may_jump) for one in standings}


def _left_s(run: Any, mean_s: float | None, clock: float) -> float:
    """Return the expected time to the end of a run, infinite if it is unknown. A run that its owner
    pauses or cancels ends at once."""
    if run.desired_state != DesiredState.RUN:
        return 0.0
    end = expected_end(run, mean_s, clock)
    return math.inf if end is None else max(0.0, end - clock)


def _run(row: Any, owner: _User, left_s: float, clock: float) -> Run:
    return Run(
        experiment_id=row.id,
        worker_id=row.worker,
        owner_id=row.owner_id,
        usage=owner.usage,
        project_id=row.project_id,
        jumps=owner.jumps(row.priority),
        lasted_s=max(0.0, clock - row.started_at),
        left_s=left_s,
        has_progressed=row.progress_at is not None,
        gave_way_before=bool(row.gave_way_before),
        gives_way_to=row.gives_way_to,
    )


_FIRST = {
    queue: text(
        "SELECT id, family, priority, coalesce(memory_bytes, 0) AS memory_bytes,"
        " created_at, (SELECT max(ended_at) FROM attempts WHERE experiment_id = experiments.id)"
        " AS ended_at FROM experiments WHERE owner_id = :owner_id AND project_id = :project_id"
        f" AND {startable}{OF_FAMILIES}"
        " AND coalesce(memory_bytes, 0) <= :room ORDER BY priority DESC, id LIMIT 1"
    ).bindparams(FAMILIES)
    for queue, startable in STARTABLE.items()
}


def _waiting(
    session: Session,
    queue: Queue,
    fair_share: FairShare,
    places: Sequence[Place],
    users: Mapping[Member, _User],
    served: Mapping[str, Member],
    clock: float,
) -> Iterator[Iterator[Waiting]]:
    """Yield the next experiments of each user, in each account, who may begin a run in this queue,
    if need be after one of the project: those that jump first, then by usage. `served` has the
    experiments that have a place in another queue, with their owners."""
    workers = [place for place in places if place.queue == queue]
    gpus = [place for place in places if place.queue == Queue.GPU]
    families = frozenset[str]().union(*(place.families for place in workers))
    numbers = len(workers), len(gpus)
    others = Counter(one.owner_id for one in served.values())
    of_projects = Counter(one.project_id for one in served.values())
    users_in_turn = candidates(
        session, queue, families, fair_share, *numbers, of_full_projects=True
    )
    next_in_turn = None

    def turn(user: Candidate) -> tuple[bool, tuple[float, float], str]:
        of_member = users[user.member]
        return not of_member.jumps(user.priority), of_member.usage.order, user.first_id

    def of_user(user: Candidate) -> Iterator[Waiting]:
        """Yield the first experiment, then the first ones of other families. Memory is kept for the
        first alone."""
        left = set(families)
        while left:
            given = {**user.member._asdict(), "families": [*left], "room": room}
            row = session.execute(_FIRST[queue], given).one_or_none()
            if row is None or row.id in served:
                return
            left.remove(row.family)
            yield Waiting(
                experiment_id=row.id,
                owner_id=user.id,
                usage=users[user.member].usage,
                jumps=users[user.member].jumps(row.priority),
                is_next=user.member == next_in_turn and len(left) == len(families) - 1,
                family=row.family,
                memory_bytes=row.memory_bytes,
                waited_s=max(0.0, clock - max(row.created_at, row.ended_at or 0.0)),
                project_id=user.project_id,
                project_places=user.project_places_left - of_projects[user.project_id],
            )

    room = int(min(max(place.room_without_ours for place in workers), MAX_BYTES))
    while some := [*islice(users_in_turn, FEW)]:
        next_in_turn = next_in_turn or some[0].member
        for user in sorted(some, key=turn):
            is_left_to_gpu = queue == Queue.CPU and user.has_one_place
            if is_left_to_gpu and gpu_run_is_first(session, user, gpus):
                continue
            if others[user.id] < user.places_left:
                yield of_user(user)
