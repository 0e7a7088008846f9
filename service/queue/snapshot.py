"""The state of the queue from which positions are computed.

It is read once for all requests of a second: it takes a dozen queries, and a hundred polling
scripts need it a hundred times a second.
"""

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.accounts.models import OWN
from service.experiments.models import DEVICES, Device, Experiment, Held, Queue
from service.fair_share import FairShare
from service.queue import forecast, rooms, shares, workers
from service.queue.claims import MAX_PRIORITY, max_slots
from service.queue.forecast import Forecast
from service.queue.ledger import Member, slot_weight
from service.queue.rooms import Place
from service.queue.shares import Account, First, Standing
from service.queue.start_order import CONTENDER, StartOrder
from service.queue.workers import Slots
from service.vocabulary import Status

QUEUES = {device: tuple(queue for queue in Queue if device in DEVICES[queue]) for device in Device}
"""Queues whose workers accept each device."""


@dataclass(frozen=True, slots=True)
class Group:
    """Waiting experiments of a user in one account with the same device, priority and family."""

    device: Device
    count: int
    first: First
    family: str
    least_bytes: int
    """The memory of those that need the least."""
    most_bytes: int


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The queue of all users at one moment."""

    fair_share: FairShare
    standings: Mapping[Member, Standing]
    waiting: Mapping[Member, Sequence[Group]]
    """Waiting experiments of each user in each account."""
    slots: Mapping[Queue, Slots]
    places: Mapping[Queue, Sequence[Place]]
    """The workers of each queue, with the memory that is free for a run."""
    drained: Mapping[Queue, Sequence[Place]]
    """The workers of each queue whose machine is drained. `places` has none of them."""
    forecasts: Mapping[Queue, Forecast]
    made_at: float
    ids: dict[Member, Mapping[tuple[Device, int], Sequence[str]]] = field(default_factory=dict)
    """Ids of the requesting users' waiting experiments, in each account, by device and priority,
    oldest first."""
    orders: dict[Queue, StartOrder] = field(default_factory=dict)
    displacers: dict[Queue, Mapping[str, Sequence[Standing]]] = field(default_factory=dict)
    """Users whose experiments may displace the run of each worker, once somebody has asked."""

    def all_places(self, queue: Queue) -> Sequence[Place]:
        """Return the workers of a queue, also drained ones."""
        return [*self.places[queue], *self.drained[queue]]

    def own_before(self, member: Member, experiment: First, devices: Collection[Device]) -> int:
        """Return how many experiments of the same user in the same account for these devices start
        before this one, which may be newer than the snapshot."""
        before = 0
        for (device, priority), ids in self.ids[member].items():
            if device in devices and priority > experiment.priority:
                before += len(ids)
            elif device in devices and priority == experiment.priority:
                before += bisect_left(ids, experiment.id)
        return before

    def groups(self, member: Member, devices: Collection[Device]) -> list[Group]:
        """Return a user's waiting experiments in an account for these devices, the next ones
        first."""
        groups = [group for group in self.waiting.get(member, ()) if group.device in devices]
        return sorted(groups, key=lambda group: group.first.order)

    def gpu_run_is_first(self, member: Member) -> bool:
        """Return whether a GPU run comes before the run that a CPU worker would take."""
        groups = self.groups(member, (Device.CPU, Device.CUDA, Device.AUTO))
        return bool(groups) and groups[0].device == Device.CUDA

    def order(self, queue: Queue) -> StartOrder:
        """Return the order of starts in a queue."""
        if queue not in self.orders:
            slots = self.slots.get(queue)
            if slots is None or not slots.workers:  # none is there: assume one
                slots = Slots(1, 1)
            users = [user for user in self.standings.values() if user.project_id == OWN]
            submitters = sum(user.may_submit for user in users)
            most = max_slots(self.fair_share, slots.workers, submitters)
            advance_s = self.fair_share.advance_s or 1.0
            weight = slot_weight(self.fair_share, queue)
            contenders = [
                _contender(user, groups, queue, most)
                for member in self.waiting
                if (user := self.standings.get(member)) and user.could_begin(queue)
                and (groups := self.groups(member, DEVICES[queue]))
            ]  # fmt: skip
            members = np.array(contenders, CONTENDER)
            is_own = members["project_id"] == OWN
            members, own = members[~is_own], members[is_own]
            accounts = {user.project_id: user.account for user in self.standings.values()}
            projects = [
                _project(accounts[id], members[members["project_id"] == id])
                for id in np.unique(members["project_id"])
            ]
            self.orders[queue] = StartOrder(
                accounts=np.concatenate([own, np.array(projects, CONTENDER)]),
                members=members,
                slots=slots,
                max_slots=most,
                advance_s=weight * advance_s,
                usual_s=weight * max(advance_s, self.forecasts[queue].mean_s or 0.0),
            )
        return self.orders[queue]


def _contender(
    user: Standing, groups: Sequence[Group], queue: Queue, max_slots: float
) -> tuple[object, ...]:
    """Return the columns of `CONTENDER`."""
    waiting, here = sum(group.count for group in groups), user.under_way[queue]
    limit = min(max_slots, waiting + here)
    if user.max_running is not None:
        limit = min(limit, user.max_running - user.running + here)
    return (
        user.owner_id,
        user.project_id,
        user.shares,
        user.charged_s,
        waiting,
        sum(group.count for group in groups if group.first.priority > MAX_PRIORITY)
        if user.may_jump
        else 0,
        max(0.0, limit - here),
        limit,
        groups[0].first.id,
    )


def _project(account: Account, members: NDArray[np.void]) -> tuple[object, ...]:
    """Return the columns of `CONTENDER` for a project, from those of its members."""
    room, limit = members["room"].sum(), members["limit"].sum()
    if account.max_running is not None:
        room = min(room, max(0, account.max_running - account.running))
        limit = min(limit, account.max_running)
    first = min(members, key=lambda one: (one["charged_s"] / one["shares"], one["first_id"]))
    return (
        0,
        members["project_id"][0],
        account.shares,
        account.charged_s,
        members["waiting"].sum(),
        members["jumping"].sum(),
        room,
        limit,
        first["first_id"],
    )


MAX_AGE_S = 1.0
"""Seconds for which answers use the same snapshot."""


class QueueSnapshots:
    """Cache of the latest snapshot."""

    def __init__(self, within_s: float = 60.0, fair_share: FairShare | None = None):
        """Configure the cache. A worker counts if it reported within `within_s` seconds."""
        self.within_s = within_s
        self.fair_share = fair_share or FairShare()
        self._last: QueueSnapshot | None = None
        self._lock = threading.Lock()

    def of(self, session: Session, members: Collection[Member]) -> QueueSnapshot:
        """Return a snapshot that includes these users in these accounts."""
        session.connection()  # before the lock: those that wait for the lock may hold all others
        with self._lock:
            last = self._last
            if (
                last is None
                or time.monotonic() - last.made_at >= MAX_AGE_S
                or not last.standings.keys() >= set(members)
            ):
                last = self._last = self._read(session)
            if unknown := set(members) - last.ids.keys():
                last.ids.update(_ids(session, unknown))
            return last

    def _read(self, session: Session) -> QueueSnapshot:
        places: dict[Queue, list[Place]] = {queue: [] for queue in Queue}
        drained: dict[Queue, list[Place]] = {queue: [] for queue in Queue}
        for place in rooms.places(session, self.within_s):
            of_queues = places if place.drained_until is None else drained
            of_queues[place.queue].append(place)
        return QueueSnapshot(
            made_at=time.monotonic(),
            fair_share=self.fair_share,
            standings={user.member: user for user in shares.standings(session, self.fair_share)},
            waiting=_waiting(session),
            slots=workers.slots(session, self.within_s),
            places=places,
            drained=drained,
            forecasts=forecast.forecasts(session),
        )


_QUEUED = (Experiment.status == Status.QUEUED) & (Experiment.held == Held.NOT)
_KIND = (Experiment.owner_id, Experiment.project_id, Experiment.device, Experiment.priority)


def _waiting(session: Session) -> dict[Member, list[Group]]:
    rows = session.execute(
        select(
            *_KIND,
            Experiment.family,
            func.count(),
            func.min(Experiment.id),
            func.min(func.coalesce(Experiment.memory_bytes, 0)),
            func.max(func.coalesce(Experiment.memory_bytes, 0)),
        )
        .where(_QUEUED)
        .group_by(*_KIND, Experiment.family)
    )
    groups = defaultdict[Member, list[Group]](list)
    for owner_id, project_id, device, priority, family, count, first_id, least, most in rows:
        group = Group(Device(device), count, First(priority, first_id), family, least, most)
        groups[Member(owner_id, project_id)].append(group)
    return groups


def _ids(
    session: Session, members: Collection[Member]
) -> dict[Member, Mapping[tuple[Device, int], Sequence[str]]]:
    """Return the ids of these users' waiting experiments in these accounts. They are read as one
    row for each device and priority, because rows for thousands of ids are slow."""
    owners = {member.owner_id for member in members}
    rows = session.execute(
        select(*_KIND, func.aggregate_strings(Experiment.id, ","))
        .where(_QUEUED, Experiment.owner_id.in_(owners))
        .group_by(*_KIND)
    )
    ids: dict[Member, dict[tuple[Device, int], Sequence[str]]] = {one: {} for one in members}
    for owner_id, project_id, device, priority, joined in rows:
        if (member := Member(owner_id, project_id)) in ids:
            ids[member][Device(device), priority] = sorted(joined.split(","))
    return dict(ids)
