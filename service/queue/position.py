"""Position of a queued experiment, why it waits, and when it may start."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from service.accounts.models import OWN
from service.db.engine import moment
from service.experiments.models import DEVICES, Device, Experiment, Queue
from service.queue import forecast, holds, turns
from service.queue.claims import MAX_PRIORITY
from service.queue.forecast import rounded
from service.queue.ledger import Member
from service.queue.rooms import Place, SharedMemory
from service.queue.schemas import QueuePosition
from service.queue.shares import First
from service.queue.snapshot import QUEUES, QueueSnapshot, QueueSnapshots
from service.queue.workers import Slots
from service.vocabulary import Status

GIB = 2**30
LAST = "g"
"""Sorts after every id."""
STORE_FULL = "the store's disk is full: no run starts until an administrator has freed space"


def queue_positions(
    session: Session,
    experiments: Sequence[Experiment],
    queue_snapshots: QueueSnapshots,
    reader_id: int | None = None,
) -> dict[str, QueuePosition]:
    """Return the positions of the queued ones among these experiments, by id. The number of queries
    does not depend on their number. Reasons are worded for the reader; None is the owner."""
    queued = [row for row in experiments if row.status == Status.QUEUED]
    if not queued:
        return {}
    snapshot = queue_snapshots.of(session, {member_of(row) for row in queued})
    positions = {
        row.id: _queue_position(row, snapshot, reader_id in (None, row.owner_id)) for row in queued
    }
    for id, reason in holds.reasons(session, experiments, reader_id).items():
        if id in positions:
            positions[id] = _unknown(positions[id].position, reason)
    return positions


def position_of_next(
    session: Session,
    owner_id: int,
    columns: Mapping[str, Any],
    queue_snapshots: QueueSnapshots,
) -> QueuePosition:
    """Return the position of an experiment that would be submitted now with these columns."""
    experiment = Experiment(id=LAST, owner_id=owner_id, **{"project_id": OWN, **columns})
    return _queue_position(experiment, queue_snapshots.of(session, {member_of(experiment)}))


def member_of(experiment: Experiment) -> Member:
    """Return the account that an experiment is charged to."""
    return Member(experiment.owner_id, experiment.project_id)


@dataclass(frozen=True, slots=True)
class ShortMemory:
    """Why no worker of a queue has memory for a run."""

    reason: str
    ends: bool
    """True if there is room once our own runs have ended."""


def _queue_position(
    experiment: Experiment, snapshot: QueueSnapshot, is_readers: bool = True
) -> QueuePosition:
    wanted = QUEUES[Device(experiment.device)]
    served = [queue for queue in wanted if queue in snapshot.slots]
    needed = experiment.memory_bytes or 0
    short = {
        queue: short_memory(needed, _with_family(experiment.family, snapshot.places[queue]))
        for queue in served
    }
    expected = {
        queue: _expected(experiment, queue, snapshot, short.get(queue) is None)
        for queue in served or wanted
    }
    position = min(position for position, _ in expected.values())
    reason, queues = _reason(experiment, position, short, snapshot, is_readers)
    if not queues:
        return _unknown(position, reason, blocked=True)
    starts = [start for queue in queues if (start := expected[queue][1]) is not None]
    queue = Queue.GPU if Queue.GPU in queues else queues[0]
    promise = turns.promise(experiment, queue, snapshot, is_readers)
    return QueuePosition(
        position=position,
        reason=reason,
        blocked=False,
        estimated_start=moment(min(starts, default=None)),
        estimate=forecast.BASIS if starts else forecast.UNKNOWN,
        latest_start=moment(promise.at),
        promise=promise.words,
    )


def _unknown(position: int, reason: str, *, blocked: bool = False) -> QueuePosition:
    return QueuePosition(
        position=position,
        reason=reason,
        blocked=blocked,
        estimated_start=None,
        estimate=reason,
        latest_start=None,
        promise=None,
    )


def _expected(
    experiment: Experiment, queue: Queue, snapshot: QueueSnapshot, has_memory: bool
) -> tuple[int, float | None]:
    """Return how many experiments start before this one on workers of the queue, and when it
    starts: when a slot is free for it, also under its user's limits. None: it is not known. Without
    memory for it, an idle worker does not count."""
    member = member_of(experiment)
    user, order = snapshot.standings[member], snapshot.order(queue)
    rank, expected = First(experiment.priority, experiment.id), snapshot.forecasts[queue]
    groups = snapshot.groups(member, DEVICES[queue])
    first_id = groups[0].first.id if groups else experiment.id
    before = snapshot.own_before(member, rank, DEVICES[queue])
    jumps = user.may_jump and experiment.priority > MAX_PRIORITY
    position = order.position(user, first_id, before, jumps)
    idle = _idle(experiment.family, queue, snapshot) if has_memory else 0
    starts = [expected.start_after(position, idle, expected.running)]
    if order.max_slots < math.inf:
        room = int(order.max_slots) - user.under_way[queue]
        starts.append(expected.start_after(before, room, expected.of(user.owner_id)))
    if user.max_running is not None:
        of_all = snapshot.own_before(member, rank, tuple(Device))
        running = [run for each in snapshot.forecasts.values() for run in each.of(user.owner_id)]
        starts.append(expected.start_after(of_all, user.max_running - user.running, running))
    if (most := user.account.max_running) is not None:
        in_project = order.position_in_project(user, first_id, before, jumps)
        running = [run for each in snapshot.forecasts.values() for run in each.running
                   if run.project_id == user.project_id]  # fmt: skip
        starts.append(expected.start_after(in_project, most - user.account.running, running))
    known = [start for start in starts if start is not None]
    return position, rounded(max(known), expected.clock) if len(known) == len(starts) else None


def _reason(
    experiment: Experiment,
    position: int,
    short: Mapping[Queue, ShortMemory | None],
    snapshot: QueueSnapshot,
    is_readers: bool,
) -> tuple[str, Sequence[Queue]]:
    """Return why it waits, and the queues in which it starts without anyone's help. `short` says
    for each queue that has workers why they have no memory for it."""
    if not short:
        kinds = " or ".join(queue.upper() for queue in QUEUES[Device(experiment.device)])
        return f"no {kinds} worker is registered", ()
    places = [place for queue in short for place in snapshot.all_places(queue)]
    if not any(place.can_run(experiment.family) for place in places):
        kinds = " or ".join(queue.upper() for queue in short)
        lacks = f"no live {kinds} worker has the family {experiment.family}"
        return f"{lacks}: an administrator has to install its package there", ()
    if (reason := _drained(experiment, [*short], snapshot)) is not None:
        return reason, ()
    if (reason := _drained_soon(experiment, [*short], snapshot)) is not None:
        return reason, ()
    served = [queue for queue in short if _with_family(experiment.family, snapshot.places[queue])]
    served = [queue for queue in served if not snapshot.slots[queue].store_full]
    if not served:
        return STORE_FULL, ()
    user, member = snapshot.standings[member_of(experiment)], member_of(experiment)
    if user.is_disabled:
        return "its owner is disabled: it starts once an admin enables the user", ()
    if user.is_at_limit:
        reason = f"{user.running} of your runs are running, your limit is {user.max_running}"
        reason = reason if is_readers else "its owner has the maximum number of running experiments"
        return reason, served
    if user.account.is_at_limit:
        running, most = user.account.running, user.account.max_running
        reason = (
            f"{running} runs of project {user.account.project} are running, its limit is {most}"
        )
        return (reason if is_readers else "its project has the maximum number of runs"), served
    served = [queue for queue in served if user.may_begin(queue)]
    if not served and user.account.has_spent_gpu_hours:
        hours = f"{user.account.gpu_hours:.3g} GPU-hours within the last 24"
        limit = f"its limit is {user.account.max_gpu_hours:g}"
        reason = f"project {user.account.project} had {hours}, {limit}"
        return reason if is_readers else "its project has used up the GPU-hours of a day", ()
    if not served:
        hours = f"{user.gpu_hours:.3g} GPU-hours within the last 24"
        reason = f"you had {hours}, your limit is {user.max_gpu_hours:g}"
        return reason if is_readers else "its owner has used up the GPU-hours of a day", ()
    free = [queue for queue in served if user.under_way[queue] < snapshot.order(queue).max_slots]
    if not free:
        spare = snapshot.fair_share.spare_slots
        kinds = " and ".join(queue.upper() for queue in served)
        reason = f"your runs have all {kinds} workers but {spare}, kept for other users"
        reason = reason if is_readers else "its owner's runs have all workers but the spare ones"
        return reason, served
    gpu_run_is_first = user.has_one_place and snapshot.gpu_run_is_first(member)
    if free == [Queue.CPU] and snapshot.places[Queue.GPU] and gpu_run_is_first:
        is_users = user.max_running is not None and user.running + 1 == user.max_running
        whose = "your limit" if is_users else f"the limit of project {user.account.project}"
        most = user.max_running if is_users else user.account.max_running
        reason = f"{whose} is {most}, and your GPU run before it has the last place"
        return reason if is_readers else "a GPU run of its owner's before it has the last place", ()
    with_room = [queue for queue in free if short[queue] is None]
    if with_room:
        idle_late = [
            place for queue in short for place in _late(experiment.family, snapshot.places[queue])
            if place.is_idle and place.room >= (experiment.memory_bytes or 0)
        ]  # fmt: skip
        turn = f"{position} before it" if position else "next in turn"
        if idle_late and not any(_idle(experiment.family, queue, snapshot) for queue in with_room):
            begins = _planned_drains(experiment.family, idle_late)
            return f"{begins}; the other workers are busy, {turn}", with_room
        return _turn(turn, with_room, snapshot.slots), with_room
    reasons = [(queue, why) for queue in free if (why := short[queue]) is not None]
    return (
        " and ".join(why.reason for _, why in reasons),
        [queue for queue, why in reasons if why.ends],
    )


def _with_family(family: str, places: Sequence[Place]) -> Sequence[Place]:
    return [place for place in places if family in place.families]


def _idle(family: str, queue: Queue, snapshot: QueueSnapshot) -> int:
    """Return how many idle workers may start a run of a family."""
    return sum(place.is_idle for place in _with_family(family, snapshot.places[queue]))


def _drained(
    experiment: Experiment, served: Sequence[Queue], snapshot: QueueSnapshot
) -> str | None:
    """Return that all workers with the family and the memory for a run are drained, and until when;
    None if another worker has them, or none."""
    family, needed = experiment.family, experiment.memory_bytes or 0
    workers = [
        place for queue in served for place in snapshot.places[queue] if place.can_run(family)
    ]
    if any(place.room_without_ours >= needed for place in workers):
        return None
    ends = [
        place.drained_until
        for queue in served
        for place in _with_family(family, snapshot.drained[queue])
        if place.drained_until is not None and (place.room_without_ours >= needed or not workers)
    ]
    if not ends:
        return None
    which = " and ".join(queue.upper() for queue in served) + " workers"
    which += " with enough memory for it" if workers else ""
    until = f" until {moment(min(ends)):%Y-%m-%d %H:%M} UTC" if min(ends) < math.inf else ""
    return f"all {which} are drained{until}"


def _drained_soon(
    experiment: Experiment, served: Sequence[Queue], snapshot: QueueSnapshot
) -> str | None:
    """Return that no worker with the family and the memory for a run starts it any more, because
    of planned drains; None if a worker does, or none has them."""
    family, needed = experiment.family, experiment.memory_bytes or 0
    places = [place for queue in served for place in snapshot.places[queue]]
    starting = _with_family(family, places)
    if any(place.room_without_ours >= needed for place in starting):
        return None
    late = [
        place
        for place in _late(family, places)
        if place.room_without_ours >= needed or not starting
    ]
    return _planned_drains(family, late) if late else None


def _late(family: str, places: Sequence[Place]) -> Sequence[Place]:
    """Return the workers that start no run of a family any more, because of planned drains."""
    return [place for place in places if place.can_run(family) and family not in place.families]


def _planned_drains(family: str, late: Sequence[Place]) -> str:
    """Return when the drains of these workers begin, and how long runs of the family take."""
    drains = [place.planned_drain for place in late if place.planned_drain is not None]
    hosts = defaultdict[str, set[str]](set)
    for drain in sorted(drains, key=lambda drain: drain.starts_at):
        hosts[f"{moment(drain.starts_at):%a %Y-%m-%d %H:%M} UTC"].add(drain.host)
    begins = " and ".join(
        f"{' and '.join(sorted(of_time))} {'is' if len(of_time) == 1 else 'are'} drained from "
        f"{at} on"
        for at, of_time in hosts.items()
    )
    times = [time_s for drain in drains if (time_s := drain.late[family]) is not None]
    if len(times) < len(drains):
        return f"{begins}, and it is not known how long runs of this family take"
    return f"{begins}, and runs of this family take up to {_about(max(times))}"


def _about(seconds: float) -> str:
    """Return a length of time with two digits."""
    units = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
    unit, size = next((unit, size) for unit, size in units if seconds >= 1.5 * size or size == 1.0)
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"


def _turn(turn: str, served: Sequence[Queue], slots: Mapping[Queue, Slots]) -> str:
    if any(slots[queue].idle for queue in served):
        return turn
    busy = " and ".join(f"{slots[queue].workers} {queue.upper()}" for queue in served)
    total = sum(slots[queue].workers for queue in served)
    which = f"the only {served[0].upper()} worker is" if total == 1 else f"all {busy} workers are"
    return f"{which} busy, {turn}"


def short_memory(needed: int, places: Sequence[Place]) -> ShortMemory | None:
    """Return why no idle worker has memory for a run, or no worker at all even after our own runs
    have ended. None if one has, and if all that could ever have it are busy."""
    takes = f"the run takes about {needed / GIB:.3g} GiB"
    fit = [place for place in places if place.room_without_ours >= needed]
    if places and not fit:
        return ShortMemory(f"{_too_small(places)}; {takes}", ends=False)
    idle = [place for place in fit if place.is_idle]
    if not idle or any(place.room >= needed for place in idle):
        return None
    place = max(idle, key=lambda place: place.room)
    memory = place.short_memory(needed)
    assert memory is not None  # since its worker would allow the run
    left = f"{max(0, memory.room) / GIB:.3g} GiB are left beside current runs"
    if memory.foreign and memory.room + memory.foreign >= needed:
        left += f", and {memory.foreign / GIB:.3g} GiB are used by other programs"
    return ShortMemory(f"it waits for {_name(memory)}: {takes}, {left}", ends=True)


def _name(memory: SharedMemory) -> str:
    if memory.queue == Queue.CPU:
        return "main memory"
    return f"the memory of GPU {'' if memory.gpu_number is None else memory.gpu_number}".strip()


def _too_small(places: Sequence[Place]) -> str:
    """Return why no worker could ever have room."""
    memories = {memory.id: memory for place in places for memory in place.memories}
    used = [
        f"GPU {'' if memory.gpu_number is None else memory.gpu_number} is used by a process "
        f"outside this service ({memory.foreign / GIB:.0f} GiB)"
        for memory in memories.values()
        if memory.queue == Queue.GPU and memory.foreign
    ]
    if used:
        return " and ".join(used)
    if any(memory.queue == Queue.GPU for memory in memories.values()):
        return "no GPU has the memory"
    largest = max(place.room_without_ours for place in places)
    return f"the CPU workers hold at most {largest / GIB:.3g} GiB"
