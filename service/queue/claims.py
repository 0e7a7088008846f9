"""Claim the next experiment that a worker may run.

Accounts take turns, which are projects and users' own: the one with the least charged usage for its
shares is first. In a project its members take turns by their usage in it, for their shares. A claim
takes the member's experiment of the highest priority, then the oldest. A lab without projects has
the users' own accounts alone. Only one claim is made at a time, so that limits and memory hold.
Every function takes a session and commits nothing. Times are the database's own (`now()`).
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    Boolean,
    Float,
    Integer,
    Row,
    Select,
    String,
    bindparam,
    column,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.orm import Session

from mptcore.protocol.code import code_digest
from mptcore.specs import known_families
from service.accounts.models import OWN
from service.db.engine import now
from service.experiments.models import (
    STARTABLE,
    Attempt,
    Checkpoint,
    Event,
    Experiment,
    Queue,
    Usage,
)
from service.fair_share import FairShare
from service.queue import lease, ledger
from service.queue.lease import Claim
from service.queue.ledger import Member
from service.queue.rooms import Place, places
from service.queue.workers import lock_claims
from service.vocabulary import ROLE_SCOPES, Scope, Status
from service.workers.models import Worker

MAX_PRIORITY = 100
"""Experiments with a higher priority run before those of all other users. An admin allows this to a
user."""
MAX_BYTES = 2**62
"""Larger than any memory."""
HEARD_OF_S = 60.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A user with an experiment, in one account, that the workers of a queue may start. Usage is
    the user's in this account."""

    id: int
    project_id: int
    settled_s: float | None
    """Settled usage; None if none is recorded."""
    charged_s: float
    """Usage with current runs charged in advance."""
    as_of: float
    """Time of both usages."""
    runs: Mapping[Queue, int]
    """The user's runs in all accounts."""
    max_slots: Mapping[Queue, float]
    """Number of workers that the user's runs may use."""
    places_left: float
    """Number of runs that the user may still start under its limit."""
    project_places_left: float
    """Number of runs that may still start under the project's limit."""
    project_reserved: int
    """Number of these that workers keep for experiments of other members."""
    has_gpu_hours: bool
    """False if the user or the project has used up the GPU-hours of a day."""
    first_id: str
    """The user's first experiment in the account for the queue, with its device, family, priority
    and expected memory."""
    device: str
    family: str
    priority: int
    memory_bytes: int

    @property
    def member(self) -> Member:
        return Member(self.id, self.project_id)

    @property
    def has_one_place(self) -> bool:
        """True if one more run may start, also on a GPU worker."""
        return min(self.places_left, self.project_places_left) == 1 and self.has_gpu_hours

    def may_begin(self, queue: Queue) -> bool:
        """Return whether another run of this user may start on such a worker."""
        return self.project_places_left > self.project_reserved and self.may_begin_if_project_may(
            queue
        )

    def may_begin_if_project_may(self, queue: Queue) -> bool:
        """Return whether another run of this user may start on such a worker as soon as the project
        has a place left."""
        has_slot = self.places_left > 0 and self.runs[queue] < self.max_slots[queue]
        return has_slot and (queue == Queue.CPU or self.has_gpu_hours)


def count_startable(
    session: Session, queue: Queue, families: Collection[str], at_most: int = 1
) -> int:
    """Return how many experiments of these families wait for such workers, counted up to a number,
    whether or not their owners may start them. It needs no lock."""
    given = {"families": [*families], "at_most": at_most}
    counted: int = session.execute(_STARTABLE[queue], given).scalar_one()
    return counted


def claim(
    session: Session,
    worker: str,
    queue: Queue,
    *,
    lease_s: float,
    fair_share: FairShare,
    within_s: float = HEARD_OF_S,
) -> Claim | None:
    """Begin an attempt at the next experiment that this worker may run: increment the fence and
    acquire the lease. Return None if nothing may start here. A run resumes from the latest
    checkpoint; the records after it (or all) are deleted in the same transaction. The runner checks
    the checkpoint file. If it is damaged, the runner resumes from an earlier one or restarts, with
    the same records. Workers that have not sent a heartbeat for `within_s` seconds do not count.
    The process of the worker calls it: if its code is not that of the service, the result has no
    key of the cache."""
    lock_claims(session)
    all_places = places(session, within_s)
    chosen = choose(session, worker, queue, fair_share, all_places, lock=True)
    if any(place.worker_id == worker and place.reserved_for for place in all_places):
        session.execute(_END_RESERVATION, {"by": worker})
    if chosen is None:
        return None
    user, experiment_id = chosen
    given = {"chosen": experiment_id, "by": worker, "on": queue, "for_s": lease_s}
    row = session.execute(_TAKE, given).one()
    if row.cache_key is not None and not row.cache_key.startswith(code_digest(row.family)):
        of_row = update(Experiment).where(Experiment.id == row.id)
        session.execute(of_row.values(cache_key=None))
    session.execute(_BEGIN, {"chosen": experiment_id})
    weight = fair_share.gpu_weight if queue == Queue.GPU else 1.0
    _charge(session, user, weight * fair_share.advance_s)
    checkpoints = lease.resume(session, row.id) if row.attempt > 1 else ()
    claim = Claim(row.id, row.attempt, row.spec, queue, checkpoints)
    resumed = {"resumed_after": claim.after_seq} if checkpoints else {}
    data = {"status": Status.RUNNING, "attempt": row.attempt, "worker": worker, **resumed}
    session.add(Event(experiment_id=row.id, kind="status", data=data))
    return claim


def choose(
    session: Session,
    worker: str,
    queue: Queue,
    fair_share: FairShare,
    all_places: Sequence[Place],
    *,
    lock: bool = False,
) -> tuple[Candidate, str] | None:
    """Return the next user and experiment for a worker, or None. The one for which the worker is
    reserved comes first. Skipped are users at a limit, users whose runs use all workers except the
    spare ones, and experiments for which this worker lacks the family or the memory, or an idle GPU
    is the better place. With `lock` the experiment is locked, and those that another transaction
    has locked are skipped, because it may hang."""
    here = next((place for place in all_places if place.worker_id == worker), None)
    if here is not None and here.drained_until is not None:
        return None
    places = [place for place in all_places if place.drained_until is None]
    workers = [place for place in places if place.queue == queue]
    gpus = [place for place in places if place.queue == Queue.GPU]
    room = MAX_BYTES if here is None else min(here.room, MAX_BYTES)
    families = known_families() if here is None else here.families
    first = _FIRST[queue].with_for_update(skip_locked=True) if lock else _FIRST[queue]
    idle_gpus = [place for place in gpus if place.is_idle and queue == Queue.CPU]
    is_next = True
    numbers = len(workers), len(gpus)
    if here is not None and here.reserved_for is not None:
        of_it = {"id": here.reserved_for, "room": int(room), "families": [*families]}
        reserved = _RESERVED[queue].with_for_update(skip_locked=True) if lock else _RESERVED[queue]
        for row in session.execute(reserved, of_it).all():
            for user in candidates(session, queue, families, fair_share, *numbers):
                if user.member == (row.owner_id, row.project_id):
                    return user, row.id
    for user in candidates(session, queue, families, fair_share, *numbers):
        if queue == Queue.CPU and user.has_one_place and gpu_run_is_first(session, user, gpus):
            continue
        gpu_rooms = _by_gpu_room(families, idle_gpus if user.may_begin(Queue.GPU) else ())
        is_left_to_gpu = user.device == "auto" and any(
            user.family in of_room and user.memory_bytes <= gpu_room
            for gpu_room, of_room in gpu_rooms.items()
        )
        if is_next and not is_left_to_gpu and here is not None:
            if _is_kept(here, workers, user.memory_bytes):
                return None
            is_next = False
        firsts: list[Row[str, int]] = []
        for gpu_room, of_room in gpu_rooms.items():
            given = {**user.member._asdict(), "room": int(room), "families": of_room}
            firsts += session.execute(first, {**given, "gpu_room": gpu_room}).all()
        if firsts:
            return user, min(firsts, key=lambda row: (-row.priority, row.id)).id
    return None


def _by_gpu_room(families: Collection[str], idle_gpus: Sequence[Place]) -> dict[int, list[str]]:
    """Group families by the room that an idle GPU has at most for a run of them; -1 if none runs
    them. A CPU worker leaves experiments for any device to a GPU that has room."""
    groups = defaultdict[int, list[str]](list)
    for family in families:
        rooms = [place.room for place in idle_gpus if family in place.families]
        groups[int(min(max(rooms, default=-1), MAX_BYTES))].append(family)
    return dict(groups)


def max_slots(fair_share: FairShare, workers: int, submitters: int) -> float:
    """Return how many of these workers of one kind the runs of one user may use: all except some
    spare ones, which are reserved for other users: their first run starts at once. Without spare
    workers it would wait until a run has had its slice."""
    alone = submitters < 2
    if alone or workers <= fair_share.spare_slots:
        return math.inf
    return workers - fair_share.spare_slots


FEW = 32
ALL = 2**31


def candidates(
    session: Session,
    queue: Queue,
    families: Collection[str],
    fair_share: FairShare,
    cpu_workers: int,
    gpu_workers: int,
    *,
    of_full_projects: bool = False,
) -> Iterator[Candidate]:
    """Return the users who may begin a run of these families on a worker of this queue, the next in
    turn first; with `of_full_projects` also those who only wait for a run of their project to end.
    A claim nearly always takes one of the first, and the time of the query grows with the number of
    users at whose experiments it looks, so it looks at the others only if they are needed."""
    may_begin = Candidate.may_begin_if_project_may if of_full_projects else Candidate.may_begin
    clock: float = session.execute(select(now())).scalar_one()
    half_life_s, hours, project_hours = fair_share.half_life_s, None, None
    times = {"clock": clock, "half_life_s": half_life_s, "oldest": clock - 100 * half_life_s}
    known = set[Member]()
    for at_most in (FEW, ALL):
        page = {"at_most": at_most, "also_idle": at_most == FEW}
        given = {"roles": SUBMITTING, "families": [*families], **page, **times}
        rows = session.execute(_CANDIDATES[queue], given).all()
        is_limited = any(row.max_gpu_hours is not None for row in rows)
        if hours is None and (is_limited or fair_share.max_gpu_hours_a_day is not None):
            hours = ledger.gpu_hours_of_the_day(session)
        if project_hours is None and any(row.project_max_gpu_hours is not None for row in rows):
            project_hours = ledger.gpu_hours_of_the_day(session, Attempt.project_id)
        is_whole = len(rows) < at_most
        startable = [row for row in rows if row.first_id is not None]  # of these families
        before_others = startable if is_whole else _before_others(startable, rows[-1])
        for row in sorted(before_others, key=_turn):
            user = _candidate(
                row, clock, fair_share, cpu_workers, gpu_workers, hours or {}, project_hours or {}
            )
            if user.member not in known and may_begin(user, queue):
                yield user
        if is_whole:
            return
        known |= {Member(row.id, row.project_id) for row in before_others}


def _candidate(
    row: Row[Any],
    clock: float,
    fair_share: FairShare,
    cpu_workers: int,
    gpu_workers: int,
    gpu_hours: Mapping[int, float],
    project_gpu_hours: Mapping[int, float],
) -> Candidate:
    age_s = clock - (row.as_of or clock)
    max_running = fair_share.max_running if row.max_running is None else row.max_running
    max_hours = row.max_gpu_hours
    max_hours = fair_share.max_gpu_hours_a_day if max_hours is None else max_hours
    most = row.project_max_running
    hours = [(max_hours, gpu_hours.get(row.id, 0.0))]
    hours += [(row.project_max_gpu_hours, project_gpu_hours.get(row.project_id, 0.0))]
    return Candidate(
        id=row.id,
        project_id=row.project_id,
        settled_s=None if row.as_of is None else fair_share.decayed(row.settled_s, age_s),
        charged_s=fair_share.decayed(row.charged_s, age_s),
        as_of=clock,
        runs={Queue.CPU: row.cpu_runs, Queue.GPU: row.gpu_runs},
        max_slots={
            Queue.CPU: max_slots(fair_share, cpu_workers, row.submitters),
            Queue.GPU: max_slots(fair_share, gpu_workers, row.submitters),
        },
        places_left=(
            math.inf if max_running is None else max_running - row.cpu_runs - row.gpu_runs
        ),
        project_places_left=math.inf if most is None else most - row.project_runs,
        project_reserved=row.project_reserved,
        has_gpu_hours=all(limit is None or used < limit for limit, used in hours),
        first_id=row.first_id,
        device=row.device,
        family=row.family,
        priority=row.priority,
        memory_bytes=row.memory_bytes,
    )


def _turn(row: Row[Any]) -> tuple[bool, float, float, str]:
    """Sort key: priority above everyone's, then usage for the shares of the account, then of the
    member in it, then age."""
    jumps = row.may_jump and row.priority > MAX_PRIORITY
    return not jumps, row.turn, row.member_turn, row.first_id


def _before_others(rows: Sequence[Row[Any]], last_row: Row[Any]) -> Sequence[Row[Any]]:
    """Return the users among the database's first ones, up to `last_row`, who come before all
    others, whoever these are. The database has the users who may jump first, whether or not they
    do."""
    if last_row.may_jump:
        return ()
    last = (True, last_row.turn, last_row.member_turn)
    return [row for row in rows if _turn(row)[:3] < last]


def _is_kept(here: Place, workers: Sequence[Place], needed: int) -> bool:
    """Return whether memory of this worker is kept for the next run in turn, which only waits for
    our own runs to end: otherwise smaller runs would take its place forever. Kept is the memory
    that lacks the least for it, unless an idle worker has room."""
    idle = [place for place in workers if place.is_idle or place is here]
    later = [place for place in idle if place.room < needed <= place.room_without_ours]
    if len(later) == 0 or any(place.room >= needed for place in idle):
        return False
    kept = max(later, key=lambda place: place.room).short_memory(needed)
    return kept is not None and kept.id in here.memory_ids


def gpu_run_is_first(session: Session, user: Candidate, gpus: Sequence[Place]) -> bool:
    """Return whether a CPU run would use the last place under the user's limit although a GPU run
    of this user in the same account comes before it, which a GPU has the memory for."""
    families = {family for place in gpus for family in place.families}
    gpu_bytes = max((place.room_without_ours for place in gpus), default=-1.0)
    given = {**user.member._asdict(), "families": [*families]}
    gpu_run = session.execute(_FIRST_CUDA, given).one_or_none()
    if gpu_run is None or gpu_run.memory_bytes > gpu_bytes:
        return False
    return (-gpu_run.priority, gpu_run.id) < (-user.priority, user.first_id)


def _charge(session: Session, user: Candidate, slot_s: float) -> None:
    """Charge a run in advance, so that slots that become free together go to several users."""
    usage = {"charged_s": user.charged_s + slot_s, "as_of": user.as_of}
    if user.settled_s is None:
        session.execute(insert(Usage).values(settled_s=0.0, **user.member._asdict(), **usage))
    else:
        of_member = update(Usage).filter_by(**user.member._asdict())
        session.execute(of_member.values(settled_s=user.settled_s, **usage))


SUBMITTING = [role for role, scopes in ROLE_SCOPES.items() if Scope.SUBMIT in scopes]
OF_FAMILIES = " AND family IN :families"
FAMILIES: BindParameter[str] = bindparam("families", type_=String, expanding=True)
_STARTABLE = {
    queue: text(
        "SELECT count(*) FROM"
        f" (SELECT 1 FROM experiments WHERE {startable}{OF_FAMILIES} LIMIT :at_most) AS startable"
    ).bindparams(FAMILIES)
    for queue, startable in STARTABLE.items()
}
# PostgreSQL refuses a power that is too small for a float, so old usage counts as none.
_DECAYED_S = """CASE WHEN usage.as_of > :oldest AND usage.charged_s > 1e-9
    THEN usage.charged_s * power(2.0, (usage.as_of - :clock) / :half_life_s) ELSE 0.0 END"""
_OF_USER = """users.id, users.may_jump, users.max_running,
    users.max_gpu_hours_a_day AS max_gpu_hours,
    usage.settled_s, coalesce(usage.charged_s, 0) AS charged_s, usage.as_of"""
_MEMBERS = f"""
    SELECT {_OF_USER}, {OWN} AS project_id,
        NULL AS project_max_running, NULL AS project_max_gpu_hours,
        {_DECAYED_S} / users.shares AS turn, 0.0 AS member_turn
    FROM users
    LEFT JOIN usage ON usage.owner_id = users.id AND usage.project_id = {OWN}
    WHERE users.disabled_at IS NULL
    UNION ALL
    SELECT {_OF_USER}, projects.id AS project_id,
        projects.max_running AS project_max_running,
        projects.max_gpu_hours_a_day AS project_max_gpu_hours,
        coalesce(of_project.used_s, 0.0) / projects.shares AS turn,
        {_DECAYED_S} / users.shares AS member_turn
    FROM projects
    JOIN project_members ON project_members.project_id = projects.id
    JOIN users ON users.id = project_members.user_id
    LEFT JOIN usage ON usage.owner_id = users.id AND usage.project_id = projects.id
    LEFT JOIN (
        SELECT project_id, sum({_DECAYED_S}) AS used_s
        FROM usage WHERE project_id <> {OWN} GROUP BY project_id
    ) AS of_project ON of_project.project_id = projects.id
    WHERE users.disabled_at IS NULL"""
# Workers that will start an experiment of another member after a run that is not of the project, or
# that has ended. A place that a run of the project leaves is taken by no other worker before.
_RESERVED_PLACES = f"""
    SELECT count(*) FROM workers
    JOIN experiments AS next ON next.id = workers.reserved_for AND next.status = 'queued'
    WHERE workers.heartbeat_at >= :clock - {HEARD_OF_S}
        AND next.project_id = members.project_id AND next.owner_id <> members.id
        AND NOT EXISTS (
            SELECT 1 FROM experiments AS current WHERE current.worker = workers.id
                AND current.status = 'running' AND current.project_id = members.project_id
        )"""
# The databases sort all accounts, but look for experiments of the first ones alone. Only if these
# are idle, others that are idle are left out. For EXISTS, PostgreSQL would read all experiments.
_CANDIDATES = {
    queue: text(f"""
        SELECT members.*,
            (SELECT count(*) FROM users WHERE disabled_at IS NULL AND role IN :roles) AS submitters,
            coalesce(running.cpu_runs, 0) AS cpu_runs, coalesce(running.gpu_runs, 0) AS gpu_runs,
            CASE WHEN members.project_max_running IS NULL THEN 0 ELSE (
                SELECT count(*) FROM experiments
                WHERE status = 'running' AND project_id = members.project_id
            ) END AS project_runs,
            CASE WHEN members.project_max_running IS NULL THEN 0 ELSE ({_RESERVED_PLACES})
            END AS project_reserved,
            first.id AS first_id, first.device, first.family, first.priority,
            coalesce(first.memory_bytes, 0) AS memory_bytes
        FROM (
            SELECT * FROM ({_MEMBERS}) AS members
            WHERE :also_idle OR (
                SELECT id FROM experiments
                WHERE owner_id = members.id AND project_id = members.project_id AND {startable}
                LIMIT 1
            ) IS NOT NULL
            ORDER BY may_jump DESC, turn, member_turn
            LIMIT :at_most
        ) AS members
        LEFT JOIN experiments AS first ON first.id = (
            SELECT id FROM experiments
            WHERE owner_id = members.id AND project_id = members.project_id
                AND {startable}{OF_FAMILIES}
            ORDER BY priority DESC, id LIMIT 1
        )
        LEFT JOIN (
            SELECT owner_id, sum(CASE WHEN queue = 'cpu' THEN 1 ELSE 0 END) AS cpu_runs,
                sum(CASE WHEN queue = 'gpu' THEN 1 ELSE 0 END) AS gpu_runs
            FROM experiments WHERE status = 'running' GROUP BY owner_id
        ) AS running ON running.owner_id = members.id
        ORDER BY members.may_jump DESC, members.turn, members.member_turn
    """).bindparams(
        bindparam("roles", expanding=True),
        FAMILIES,
        bindparam("also_idle", type_=Boolean),
        *(bindparam(name, type_=Float) for name in ("clock", "half_life_s", "oldest")),
    )
    for queue, startable in STARTABLE.items()
}
_HAS_ROOM = {
    Queue.CPU: "coalesce(memory_bytes, 0) <= :room"
    " AND (device <> 'auto' OR coalesce(memory_bytes, 0) > :gpu_room)",
    Queue.GPU: "coalesce(memory_bytes, 0) <= :room",
}
_FIRST: dict[Queue, Select[str, int]] = {
    queue: select(column("id", String), column("priority", Integer))
    .select_from(text("experiments"))
    .where(
        text("owner_id = :owner_id AND project_id = :project_id"),
        text(STARTABLE[queue] + OF_FAMILIES).bindparams(FAMILIES),
        text(_HAS_ROOM[queue]),
    )
    .order_by(text("priority DESC"), text("id"))
    .limit(1)
    for queue in Queue
}
_RESERVED: dict[Queue, Select[str, int, int]] = {
    queue: select(column("id", String), column("owner_id", Integer), column("project_id", Integer))
    .select_from(text("experiments"))
    .where(
        text("id = :id"),
        text(STARTABLE[queue] + OF_FAMILIES).bindparams(FAMILIES),
        text("coalesce(memory_bytes, 0) <= :room"),
    )
    for queue in Queue
}
_FIRST_CUDA = text(
    "SELECT id, priority, coalesce(memory_bytes, 0) AS memory_bytes FROM experiments"
    f" WHERE owner_id = :owner_id AND project_id = :project_id"
    f" AND {STARTABLE[Queue.GPU]}{OF_FAMILIES}"
    " AND device = 'cuda' ORDER BY priority DESC, id LIMIT 1"
).bindparams(FAMILIES)
_TAKE = (
    update(Experiment)
    .where(Experiment.id == bindparam("chosen"))
    .values(
        status=Status.RUNNING,
        attempt=Experiment.attempt + 1,
        worker=bindparam("by"),
        queue=bindparam("on"),
        lease_expires_at=now() + bindparam("for_s", type_=Float),
        record_bytes=None,
        started_at=func.coalesce(Experiment.started_at, now()),
        last_seq=func.coalesce(
            select(func.max(Checkpoint.after_seq))
            .where(Checkpoint.experiment_id == Experiment.id)
            .scalar_subquery(),
            0,
        ),
        progress_done=None,
        progress_total=None,
        progress_unit=None,
        progress_stage=None,
        progress_at=None,
        progress_eta_s=None,
        gives_way_to=None,
    )
    .returning(
        Experiment.id,
        Experiment.attempt,
        Experiment.spec,
        Experiment.family,
        Experiment.cache_key,
    )
    .execution_options(synchronize_session=False)
)
_END_RESERVATION = (
    update(Worker)
    .where(Worker.id == bindparam("by"), Worker.reserved_for.is_not(None))
    .values(reserved_for=None)
    .execution_options(synchronize_session=False)
)
_BEGIN = insert(Attempt.metadata.tables[Attempt.__tablename__]).from_select(
    ["experiment_id", "attempt", "owner_id", "project_id", "queue", "worker", "started_at",
     "family", "estimated_bytes"],
    select(Experiment.id, Experiment.attempt, Experiment.owner_id, Experiment.project_id,
           Experiment.queue, Experiment.worker, now(), Experiment.family,
           Experiment.estimated_bytes)
    .where(Experiment.id == bindparam("chosen")),
)  # fmt: skip
