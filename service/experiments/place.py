"""Where a queued experiment stands, and why it waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from service import workers
from service.experiments.models import DEVICES, Device, Experiment, Queue, Status
from service.experiments.schemas import QueuePlace
from service.workers import Slots

QUEUES = {device: tuple(queue for queue in Queue if device in DEVICES[queue]) for device in Device}
"""Of which queues' workers each device takes one."""

LAST = "g"
"""After every id."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What decides a place."""

    device: str
    priority: int
    id: str


def places(
    session: Session, experiments: Sequence[Experiment], within_s: float
) -> dict[str, QueuePlace]:
    """The places of those of these experiments that are queued, by their ids, in two queries
    however many they are. A worker is one that was heard of within so many seconds."""
    queued = [
        Waiting(one.device, one.priority, one.id)
        for one in experiments
        if one.status == Status.QUEUED
    ]
    if not queued:
        return {}
    slots = workers.slots(session, within_s)
    if len(queued) == 1:
        before = {queued[0].id: _count_before(session, queued[0])}
    else:
        before = _count_before_each(session, [one.id for one in queued])
    return {one.id: _place(one, before[one.id], slots) for one in queued if one.id in before}


def place_of_next(session: Session, device: str, priority: int, within_s: float) -> QueuePlace:
    """The place of one that were submitted now."""
    one = Waiting(device, priority, LAST)
    return _place(one, _count_before(session, one), workers.slots(session, within_s))


def _count_before(session: Session, one: Waiting) -> dict[Queue, int]:
    """How many queued experiments each queue's workers take before this one. Two counts, for
    each is a range of the index."""
    waits = Experiment.status == Status.QUEUED
    equal = (Experiment.priority == one.priority) & (Experiment.id < one.id)
    counts = {}
    for queue in QUEUES[Device(one.device)]:
        for_it = waits & Experiment.device.in_(DEVICES[queue])
        higher, older = (
            select(func.count()).select_from(Experiment).where(for_it, sooner).scalar_subquery()
            for sooner in (Experiment.priority > one.priority, equal)
        )
        counts[queue] = session.scalar(select(higher + older)) or 0
    return counts


def _count_before_each(session: Session, ids: Sequence[str]) -> dict[str, dict[Queue, int]]:
    """The same of many, in one walk along the queue."""
    rows = (
        select(Experiment.id, *(_before(queue).label(queue.value) for queue in Queue))
        .where(Experiment.status == Status.QUEUED)
        .subquery()
    )
    found = session.execute(select(rows).where(rows.c.id.in_(ids))).mappings()
    return {row["id"]: {queue: row[queue.value] for queue in Queue} for row in found}


def _before(queue: Queue) -> ColumnElement[int]:
    counts = case((Experiment.device.in_(DEVICES[queue]), 1), else_=0)
    order = (Experiment.priority.desc(), Experiment.id)
    upto_this = func.sum(counts).over(order_by=order, rows=(None, 0))
    return upto_this - counts


def _place(one: Waiting, before: Mapping[Queue, int], slots: Mapping[Queue, Slots]) -> QueuePlace:
    wanted = QUEUES[Device(one.device)]
    served = [queue for queue in wanted if queue in slots]
    position = min(before[queue] for queue in served or wanted)
    if not served:
        kind = f"{wanted[0].upper()} worker" if len(wanted) == 1 else "worker"
        return QueuePlace(position=position, reason=f"no {kind} is registered")
    turn = f"{position} before it" if position else "next in turn"
    if any(slots[queue].idle for queue in served):
        return QueuePlace(position=position, reason=turn)
    busy = " and ".join(f"{slots[queue].workers} {queue.upper()}" for queue in served)
    total = sum(slots[queue].workers for queue in served)
    which = f"the only {served[0].upper()} worker is" if total == 1 else f"all {busy} workers are"
    return QueuePlace(position=position, reason=f"{which} busy, {turn}")
