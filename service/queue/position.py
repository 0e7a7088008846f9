"""Position of a queued experiment, why it waits, and when it may start."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from service.db.engine import moment
from service.experiments.models import Device, Experiment, Queue, Status
from service.queue import forecast, holds
from service.queue.claims import MAX_PRIORITY
from service.queue.rooms import Place, SharedMemory
from service.queue.schemas import QueuePosition
from service.queue.shares import First, Standing
from service.queue.snapshot import LAST, QUEUES, QueueSnapshot, QueueSnapshots
from service.queue.workers import Slots

GIB = 2**30
STORE_FULL = "the store's disk is full: no run starts until an administrator has freed space"


def queue_positions(
    session: Session,
    experiments: Sequence[Experiment],
    queue_snapshots: QueueSnapshots,
    reader_id: int | None = None,
) -> dict[str, QueuePosition]:
    """Return the positions of the queued ones among these experiments, by id. The number of queries
    does not depend on their number. Reasons are worded for the reader; None is the owner."""
    queued = [one for one in experiments if one.status == Status.QUEUED]
    if not queued:
        return {}
    queue_snapshot = queue_snapshots.of(session, {one.owner_id for one in queued})
    found = {
        one.id: _queue_position(one, queue_snapshot, reader_id in (None, one.owner_id))
        for one in queued
    }
    reasons = holds.reasons(session, experiments, reader_id)
    return found | {
        id: _unknown(found[id].position, reason) for id, reason in reasons.items() if id in found
    }


def position_of_next(
    session: Session,
    owner_id: int,
    columns: Mapping[str, Any],
    queue_snapshots: QueueSnapshots,
) -> QueuePosition:
    """Return the position of an experiment that would be submitted now with these columns."""
    one = Experiment(id=LAST, owner_id=owner_id, **columns)
    return _queue_position(one, queue_snapshots.of(session, {owner_id}))


def _position(one: Experiment, queue: Queue, queue_snapshot: QueueSnapshot) -> int:
    """Return how many start before it, by a simulation of claims."""
    own = queue_snapshot.own_before(one.owner_id, First(one.priority, one.id), queue)
    if queue_snapshot.is_alone(one.owner_id, queue):
        return own
    _, jumping = queue_snapshot.queued.get((one.owner_id, queue), (0, 0))
    if one.priority > MAX_PRIORITY:
        jumping = max(jumping, own + 1)
    return queue_snapshot.starts(one.owner_id, queue, jumping).place(own)


def _queue_position(
    one: Experiment, queue_snapshot: QueueSnapshot, is_readers: bool = True
) -> QueuePosition:
    wanted = QUEUES[Device(one.device)]
    served = [queue for queue in wanted if queue in queue_snapshot.slots]
    positions = {queue: _position(one, queue, queue_snapshot) for queue in served or wanted}
    position = min(positions.values())
    if not served:
        kinds = " or ".join(queue.upper() for queue in wanted)
        return _unknown(position, f"no {kinds} worker is registered")
    needed = one.memory_bytes or 0
    if (reason := _drained(needed, served, queue_snapshot)) is not None:
        return _unknown(position, reason)
    served = [queue for queue in served if queue_snapshot.places[queue]]
    served = [queue for queue in served if not queue_snapshot.slots[queue].store_full]
    if not served:
        return _unknown(position, STORE_FULL)
    mine = queue_snapshot.standings[one.owner_id]
    if mine.is_disabled:
        return _unknown(position, "its owner is disabled: it starts once an admin enables the user")
    if mine.is_at_limit:
        reason = f"{mine.running} of your runs are running, your limit is {mine.max_running}"
        reason = reason if is_readers else "its owner has the maximum number of running experiments"
        return _with_start(position, reason, _start_at_limit(mine, queue_snapshot))
    served = [queue for queue in served if mine.may_begin(queue)]
    if not served:
        hours = f"{mine.gpu_hours:.3g} GPU-hours within the last 24"
        reason = f"you had {hours}, your limit is {mine.max_gpu_hours:g}"
        reason = reason if is_readers else "its owner has used up the GPU-hours of a day"
        return _unknown(position, reason)
    free = [queue for queue in served if mine.under_way[queue] < queue_snapshot.most_slots(queue)]
    if not free:
        spare = queue_snapshot.fair_share.spare_slots
        kinds = " and ".join(queue.upper() for queue in served)
        reason = f"your runs have all {kinds} workers but {spare}, kept for other users"
        reason = reason if is_readers else "its owner's runs have all workers but the spare ones"
        return _with_start(position, reason, _start_at_limit(mine, queue_snapshot))
    served = free
    gpu_run_is_first = mine.has_one_place and queue_snapshot.gpu_run_is_first(one.owner_id)
    if served == [Queue.CPU] and queue_snapshot.places[Queue.GPU] and gpu_run_is_first:
        reason = f"your limit is {mine.max_running}, and your GPU run before it has the last place"
        reason = reason if is_readers else "a GPU run of its owner's before it has the last place"
        return _unknown(position, reason)
    slots = queue_snapshot.slots
    short = {queue: short_memory(needed, queue_snapshot.places[queue]) for queue in served}
    with_room = [queue for queue in served if short[queue] is None]
    if not with_room:
        reason = " and ".join(str(why) for why in short.values())
        served = [queue for queue, why in short.items() if why is not None and why.ends]
        if not served:
            return _unknown(position, reason)
        slots = {queue: replace(slots[queue], idle=0) for queue in served}
    else:
        served = with_room
        reason = _turn(position, served, slots)
    starts = [queue_snapshot.forecasts[q].start_after(positions[q], slots[q]) for q in served]
    start = min((s for s in starts if s is not None), default=None)
    return _with_start(position, reason, start)


def _drained(needed: int, served: Sequence[Queue], queue_snapshot: QueueSnapshot) -> str | None:
    """Return that all workers with the memory for a run are drained, and until when; None if
    another worker has it, or none."""
    workers = [place for queue in served for place in queue_snapshot.places[queue]]
    if any(place.room_without_ours >= needed for place in workers):
        return None
    ends = [
        place.drained_until
        for queue in served
        for place in queue_snapshot.drained[queue]
        if place.drained_until is not None and (place.room_without_ours >= needed or not workers)
    ]
    if not ends:
        return None
    which = " and ".join(queue.upper() for queue in served) + " workers"
    which += " with enough memory for it" if workers else ""
    until = f" until {moment(min(ends)):%Y-%m-%d %H:%M} UTC" if min(ends) < math.inf else ""
    return f"all {which} are drained{until}"


def _turn(position: int, served: Sequence[Queue], slots: Mapping[Queue, Slots]) -> str:
    turn = f"{position} before it" if position else "next in turn"
    if any(slots[queue].idle for queue in served):
        return turn
    busy = " and ".join(f"{slots[queue].workers} {queue.upper()}" for queue in served)
    total = sum(slots[queue].workers for queue in served)
    which = f"the only {served[0].upper()} worker is" if total == 1 else f"all {busy} workers are"
    return f"{which} busy, {turn}"


@dataclass(frozen=True, slots=True)
class ShortMemory:
    """Why no worker of a queue has memory for a run."""

    reason: str
    ends: bool
    """True if there is room once our own runs have ended."""

    def __str__(self) -> str:
        return self.reason


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


def _start_at_limit(mine: Standing, queue_snapshot: QueueSnapshot) -> float | None:
    """Return the earliest end of the user's own runs, if the user is at the limit."""
    ends = [one.ends.get(mine.owner_id) for one in queue_snapshot.forecasts.values()]
    return min((end for end in ends if end is not None), default=None)


def _unknown(position: int, reason: str) -> QueuePosition:
    return QueuePosition(position=position, reason=reason, estimated_start=None, estimate=reason)


def _with_start(position: int, reason: str, start: float | None) -> QueuePosition:
    estimate = forecast.BASIS if start is not None else forecast.UNKNOWN
    return QueuePosition(
        position=position, reason=reason, estimated_start=moment(start), estimate=estimate
    )
