"""Turns: which user has each slot, who may displace the run there, and the latest time at which a
waiting experiment starts.

Everything is computed from the snapshot of the queue. A latest start is a promise: it holds as long
as nobody with less usage submits, the workers stay, and runs end when they are expected to. Where
that is not certain, nothing is promised: also not while experiments of projects wait or run.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from mptcore.specs.compute import GPU_SHARE
from service.experiments.models import DEVICES, Experiment, Queue
from service.queue.claims import MAX_PRIORITY
from service.queue.forecast import Running, rounded
from service.queue.giving_way import ENDS_SOON
from service.queue.ledger import Member, slot_weight
from service.queue.rooms import Place, SharedMemory
from service.queue.shares import First, Level, Standing, levels
from service.queue.snapshot import Group, QueueSnapshot

SAVE_S = 60.0
"""Time until a run that is asked to give way has saved, and the other one starts."""
STALE_S = 10.0
"""Use of a slot that may not be charged yet."""
SHOWN_NAMES = 3
"""Maximum number of users that a slot or a sentence names."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A worker, the run that has it, and the users whose experiments may displace that."""

    place: Place
    run: Running | None
    displacers: Sequence[Standing]
    """In the order in which they are served."""


def slots(snapshot: QueueSnapshot) -> Iterator[Slot]:
    """Yield all workers, also drained ones."""
    for queue in Queue:
        runs = {run.worker_id: run for run in snapshot.forecasts[queue].running}
        if queue not in snapshot.displacers:
            snapshot.displacers[queue] = _displacers(snapshot, queue, runs)
        for place in sorted(snapshot.all_places(queue), key=lambda place: place.worker_id):
            displacers = snapshot.displacers[queue].get(place.worker_id, ())
            yield Slot(place, runs.get(place.worker_id), displacers)


def _displacers(
    snapshot: QueueSnapshot, queue: Queue, runs: Mapping[str, Running]
) -> dict[str, list[Standing]]:
    """Return the users whose experiments may displace the run of each worker."""
    if not snapshot.fair_share.slice_s:
        return {}
    usages, waiting = _usages(snapshot, queue), _waiting(snapshot, queue)
    return {
        place.worker_id: [
            user
            for user, groups in waiting
            if any(_fits(group, place) for group in groups)
            and _is_before(user, groups, runs[place.worker_id], snapshot, usages)
        ]
        for place in snapshot.places[queue]
        if place.worker_id in runs
    }


def _fits(group: Group, place: Place) -> bool:
    return group.family in place.families and group.least_bytes <= place.room_without_ours


def _is_before(
    user: Standing,
    groups: Sequence[Group],
    run: Running,
    snapshot: QueueSnapshot,
    usages: Mapping[Member, Level],
) -> bool:
    """Return whether a run may have to give way to a user once it has had its slice."""
    is_elsewhere = user.account.is_at_limit and run.member.project_id != user.project_id
    if user.owner_id == run.owner_id or is_elsewhere:
        return False
    jumps, run_jumps = _jumps(user, groups[0].first.priority), _has_jumped(run, snapshot)
    is_before = jumps == run_jumps and usages[user.member].is_below(usages[run.member])
    return is_before or (jumps and not run_jumps)


def _jumps(user: Standing, priority: int) -> bool:
    return user.may_jump and priority > MAX_PRIORITY


def _has_jumped(run: Running, snapshot: QueueSnapshot) -> bool:
    return _jumps(snapshot.standings[run.member], run.priority)


def _usages(snapshot: QueueSnapshot, queue: Queue) -> dict[Member, Level]:
    """Return each user's usage for the shares, in each account, with what current runs will use in
    their slices."""
    fair_share, forecast = snapshot.fair_share, snapshot.forecasts[queue]
    to_come_s = defaultdict[Member, float](float)
    for run in forecast.running:
        until = min(run.started_at + fair_share.slice_s, run.end or math.inf)
        left_s = max(0.0, until - forecast.clock)
        to_come_s[run.member] += slot_weight(fair_share, queue) * left_s
    return levels(snapshot.standings.values(), to_come_s)


def _waiting(snapshot: QueueSnapshot, queue: Queue) -> list[tuple[Standing, Sequence[Group]]]:
    """Return the users who may begin a run, if need be after one of their project, with what waits,
    in the order in which runs give way to them."""
    usages, max_slots = _usages(snapshot, queue), snapshot.order(queue).max_slots

    def turn(waiting: tuple[Standing, Sequence[Group]]) -> tuple[bool, tuple[float, float], str]:
        user, (group, *_) = waiting
        jumps = _jumps(user, group.first.priority)
        return not jumps, usages[user.member].order, group.first.id

    waiting = [
        (user, groups)
        for member in snapshot.waiting
        if (user := snapshot.standings.get(member))
        and user.may_begin_if_project_may(queue) and user.under_way[queue] < max_slots
        and (groups := snapshot.groups(member, DEVICES[queue]))
    ]  # fmt: skip
    return sorted(waiting, key=turn)


@dataclass(frozen=True, slots=True)
class Promise:
    """The latest start of an experiment; None if none can be promised."""

    at: float | None
    words: str | None
    """Sentence that says when and why, or why not. None: runs do not give way."""


def promise(
    experiment: Experiment, queue: Queue, snapshot: QueueSnapshot, is_readers: bool
) -> Promise:
    """Return the latest start of a waiting experiment on a worker of a queue, worded for its owner
    or another reader. Each run of a user with more usage gives way after its slice, so it is the
    time at which more of them have had it than there are experiments that come before this one."""
    member = Member(experiment.owner_id, experiment.project_id)
    user, forecast = snapshot.standings[member], snapshot.forecasts[queue]
    if not snapshot.fair_share.slice_s:
        return Promise(None, None)
    if (why_not := _why_not(experiment, user, queue, snapshot, is_readers)) is not None:
        return Promise(None, why_not)
    rivals = _rivals(experiment, user, queue, snapshot)
    before = {experiment.id} | {
        group.first.id for rival, _ in rivals for group in snapshot.waiting.get(rival.member, ())
    }
    free = sorted(_free(experiment, user, queue, snapshot, before), key=lambda slot: slot[0])
    several = [rival.name for rival, starts in rivals if starts > 1]
    if several and free:
        why = f"{several[0]} has less usage and may start several experiments first"
        return Promise(None, f"no latest start: {why}")
    if len(free) <= len(rivals):
        usages, owner = _usages(snapshot, queue), "your" if is_readers else "its owner's"
        mine = usages[user.member]
        why = "it is not certain that a run has to give way to it"
        if not any(mine.is_below(usages[run.member]) for run in forecast.running):
            why = f"{owner} usage for the shares is higher than that of everybody who runs"
        return Promise(None, f"no latest start: {why}")
    at, place, run = free[len(rivals)]
    if run is None:
        return Promise(forecast.clock, "a worker is free for it")
    soon_s = ENDS_SOON * snapshot.fair_share.slice_s
    if rivals or any(_may_end_by(at + soon_s, one, forecast.clock) for one in forecast.running):
        at += soon_s  # runs that are expected to end are left to end
    at = rounded(at + SAVE_S, forecast.clock)
    why = f"{snapshot.standings[run.member].name}'s run on {slot_name(place)} gives way by then"
    if rivals:
        names = listed([rival.name for rival, _ in rivals])
        why = f"{names} {'comes' if len(rivals) == 1 else 'come'} before it, and {why}"
    return Promise(at, f"within {duration(at - forecast.clock)}: {why}")


def _why_not(
    experiment: Experiment,
    user: Standing,
    queue: Queue,
    snapshot: QueueSnapshot,
    is_readers: bool,
) -> str | None:
    """Return why nothing is promised for an experiment, whatever runs; None if something may be."""
    runs = snapshot.forecasts[queue].running
    if _jumps(user, experiment.priority):
        return "a run gives way to its priority as soon as one can"
    if user.project_id or any(
        member.project_id for member in (*snapshot.waiting, *(run.member for run in runs))
    ):
        return "no latest start while experiments of projects wait or run"
    if user.running:
        whose = "you have" if is_readers else "its owner has"
        return f"no latest start while {whose} another run"
    first = First(experiment.priority, experiment.id)
    elsewhere = [group for group in snapshot.waiting.get(user.member, ())
                 if group.device not in DEVICES[queue]]  # fmt: skip
    is_limited = user.max_running is not None and bool(elsewhere)
    if is_limited or snapshot.own_before(user.member, first, DEVICES[queue]):
        whose = "your" if is_readers else "its owner's"
        return f"no latest start: others of {whose} experiments may start before it"
    return None


def _rivals(
    experiment: Experiment, user: Standing, queue: Queue, snapshot: QueueSnapshot
) -> list[tuple[Standing, float]]:
    """Return the users whose runs may start before an experiment, and how many at a time. Free
    slots go to the users with the least charge, to which current runs do not add a slice. A run
    that gives way may start again."""
    fair_share, rivals = snapshot.fair_share, list[tuple[Standing, float]]()
    charge = _most_charge(user, snapshot)
    jumping = {run.member for run in snapshot.forecasts[queue].running
               if _has_jumped(run, snapshot)}  # fmt: skip
    running = {run.member for run in snapshot.forecasts[queue].running}
    for member in snapshot.waiting.keys() | running:
        rival, groups = snapshot.standings[member], snapshot.groups(member, DEVICES[queue])
        count = sum(group.count for group in groups) + rival.under_way[queue]
        if rival is user or not count or not rival.could_begin(queue):
            continue
        lead_s = charge * rival.shares - _least_charged_s(rival, snapshot)
        comes_later = lead_s == 0 and bool(groups) and groups[0].first.id > experiment.id
        if member in jumping or (groups and _jumps(rival, groups[0].first.priority)):
            rivals.append((rival, count))
        elif lead_s >= 0 and not comes_later:
            of_start = slot_weight(fair_share, queue) * fair_share.advance_s
            most = lead_s // of_start + 1 if of_start else math.inf
            rivals.append((rival, min(count, most)))
    return sorted(rivals, key=lambda rival: rival[0].name)


def _most_charge(user: Standing, snapshot: QueueSnapshot) -> float:
    """Return the most that a user without a run is charged for the shares: a run that has just
    ended may not be charged in full."""
    stale_s = STALE_S * snapshot.fair_share.gpu_weight if user.charged_s else 0.0
    return (user.charged_s + stale_s) / user.shares


def _least_charged_s(user: Standing, snapshot: QueueSnapshot) -> float:
    """Return what a user is charged at least: current runs may end before the time that they are
    charged in advance."""
    fair_share = snapshot.fair_share
    weight = sum(slot_weight(fair_share, queue) * user.under_way[queue] for queue in Queue)
    return user.charged_s - weight * fair_share.advance_s


def _free(
    experiment: Experiment,
    user: Standing,
    queue: Queue,
    snapshot: QueueSnapshot,
    before: Set[str],
) -> Iterator[tuple[float, Place, Running | None]]:
    """Yield when each worker is free for an experiment at the latest, because it is idle or because
    its run gives way to it or to one of those `before` it. A worker is left out if that is not
    certain."""
    fair_share, clock = snapshot.fair_share, snapshot.forecasts[queue].clock
    runs = {run.worker_id: run for run in snapshot.forecasts[queue].running}
    charge, weight = _most_charge(user, snapshot), slot_weight(fair_share, queue)
    for place in _certain_places(queue, snapshot):
        run = runs.get(place.worker_id)
        if run is None and place.is_idle and place.reserved_for in (None, experiment.id):
            yield clock, place, None
        if run is None or run.owner_id == user.owner_id or not run.has_progressed:
            continue
        promised = {run.gives_way_to or experiment.id, place.reserved_for or experiment.id}
        if _has_jumped(run, snapshot) or not promised <= before:
            continue
        owner = snapshot.standings[run.member]
        at = max(clock, run.started_at + fair_share.slice_s)
        charged_s = _least_charged_s(owner, snapshot) + weight * (at - clock)
        if charged_s / owner.shares > charge:
            yield at, place, run


def _certain_places(queue: Queue, snapshot: QueueSnapshot) -> Iterator[Place]:
    """Yield the workers that can start any of the waiting experiments, whatever runs beside it: its
    family is there, and the memory, and no drain is planned."""
    places = [
        place
        for place in snapshot.places[queue]
        if not place.store_full and place.planned_drain is None
    ]
    there = frozenset[str]().union(*(place.families for place in places))
    waiting = [
        group
        for member in snapshot.waiting
        for group in snapshot.groups(member, DEVICES[queue])
        if group.family in there
    ]
    families = {group.family for group in waiting}
    all_places = snapshot.all_places(queue)
    taken = [size for place in all_places for memory in place.memories
             for size in memory.taken.values()]  # fmt: skip
    largest = max([group.most_bytes for group in waiting] + taken, default=0)
    workers = Counter(id for place in all_places for id in place.memory_ids)
    for place in places:
        has_room = all(
            _most_used(memory, largest, max(workers[memory.id], len(memory.taken)) - 1) + largest
            <= memory.room_without_ours
            for memory in place.memories
        )
        if families <= place.families and largest <= place.max_run and has_room:
            yield place


def _most_used(memory: SharedMemory, largest: int, others: int) -> float:
    """Return the most that runs of other workers use of a memory, beside what is not ours. On a GPU
    they take larger parts if they are free."""
    parts = GPU_SHARE * (memory.total or 0) if memory.queue == Queue.GPU else 0.0
    foreign = 0 if memory.queue == Queue.GPU else memory.foreign
    return foreign + others * (largest + parts)


def _may_end_by(at: float, run: Running, clock: float) -> bool:
    """Return whether a run may end by then, also if it is twice as fast as expected."""
    return not run.has_eta or run.end is None or clock + (run.end - clock) / 2 <= at


def slot_name(place: Place) -> str:
    """Return the name of a worker's slot: its GPU and its machine."""
    numbers = [memory.gpu_number for memory in place.memories if memory.gpu_number is not None]
    host = place.host or place.worker_id
    return f"GPU {numbers[0]} of {host}" if numbers else host


def listed(names: Sequence[str]) -> str:
    """Return the first names and how many more there are."""
    shown = [*names[:SHOWN_NAMES]]
    if len(names) > SHOWN_NAMES:
        shown.append(f"{len(names) - SHOWN_NAMES} more")
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def duration(seconds: float) -> str:
    """Return a duration in words, rounded up to minutes."""
    minutes = max(1, math.ceil(seconds / 60))
    hours, minutes = divmod(minutes, 60)
    return " ".join([f"{hours} h"] * (hours > 0) + [f"{minutes} min"] * (minutes > 0))
