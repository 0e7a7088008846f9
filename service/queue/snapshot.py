"""A snapshot of the whole queue, from which all positions are computed."""

import math
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.experiments.models import DEVICES, Device, Experiment, Held, Queue, Status
from service.fair_share import FairShare
from service.queue import forecast, rooms, shares, workers
from service.queue.claims import MAX_PRIORITY, max_slots
from service.queue.forecast import Forecast
from service.queue.ledger import slot_weight
from service.queue.rooms import Place
from service.queue.shares import First, Firsts, Standing
from service.queue.starts import Rival, Starts
from service.queue.workers import Slots

LAST = "g"
"""Sorts after every id."""
QUEUES = {device: tuple(queue for queue in Queue if device in DEVICES[queue]) for device in Device}
"""Queues whose workers accept each device."""

Waits = Mapping[tuple[Device, int], Sequence[str]]
"""Ids of a user's queued experiments for each device and priority, oldest first."""


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """A snapshot of the queue of all users. One snapshot serves every request."""

    fair_share: FairShare
    standings: Mapping[int, Standing]
    queued: Mapping[tuple[int, Queue], tuple[int, int]]
    """Number of each user's experiments in each queue, and how many of them have a priority above
    everyone's."""
    slots: Mapping[Queue, Slots]
    places: Mapping[Queue, Sequence[Place]]
    """The workers of each queue, with the memory that is free for a run."""
    drained: Mapping[Queue, Sequence[Place]]
    """The workers of each queue whose machine is drained. `places` has none of them."""
    forecasts: Mapping[Queue, Forecast]
    firsts: Mapping[int, Firsts]
    """Next experiments of users that are tied on usage or are one run below their limit."""
    made_at: float
    waits: dict[int, Waits] = field(default_factory=dict)
    """Queued experiments of the requesting users."""
    simulated: dict[tuple[int, Queue, int], Starts] = field(default_factory=dict)
    """Simulated starts by user, queue, and number of experiments above everyone's priority."""

    def own_before(self, owner_id: int, one: First, queue: Queue) -> int:
        """Return how many experiments of the same user start before this one, which may be newer
        than the snapshot."""
        before = 0
        for (device, priority), ids in self.waits[owner_id].items():
            if device in DEVICES[queue] and priority >= one.priority:
                before += len(ids) if priority > one.priority else bisect_left(ids, one.id)
        return before

    def most_slots(self, queue: Queue) -> float:
        """Return how many workers of a queue the runs of one user may have."""
        workers = self.slots[queue].workers if queue in self.slots else 0
        submitters = sum(one.may_submit for one in self.standings.values())
        return max_slots(self.fair_share, workers, submitters)

    def is_alone(self, owner_id: int, queue: Queue) -> bool:
        """Return whether no other user has anything waiting for a queue."""
        others = (owner for owner, name in self.queued if name == queue and owner != owner_id)
        return not any(others)

    def starts(self, owner_id: int, queue: Queue, jumping: int) -> Starts:
        """Return the simulated starts of a user's experiments. `jumping` of them overtake other
        users."""
        key = owner_id, queue, jumping
        if key not in self.simulated:
            self.simulated[key] = self._starts(owner_id, queue, jumping)
        return self.simulated[key]

    def _starts(self, owner_id: int, queue: Queue, jumping: int) -> Starts:
        forecast = self.forecasts[queue]
        began: dict[int, list[float]] = defaultdict(list)
        for run in forecast.running:
            began[run.owner_id].append(run.started_at)
        waiting: dict[int, tuple[float, int]] = {
            owner: found for (owner, name), found in self.queued.items() if name == queue
        }
        waiting[owner_id] = math.inf, jumping
        users = [
            self._rival(user, queue, *waiting[user], began[user])
            for user in waiting
            if user in self.standings
            and (user == owner_id or self.standings[user].could_begin(queue))
        ]
        slots = self.slots.get(queue, Slots(0, 0))
        weight = slot_weight(self.fair_share, queue)
        return Starts(owner_id, users, slots, forecast, self.fair_share, weight)

    def _rival(
        self, user: int, queue: Queue, waiting: float, jumping: int, began: list[float]
    ) -> Rival:
        one = self.standings[user]
        rival = Rival(
            owner_id=user,
            shares=one.shares,
            waiting=waiting,
            jumping=jumping,
            room=self.most_slots(queue) - one.under_way[queue],
            charged_s=0.0,
            next_id=self._oldest(user),
            began=began,
        )
        if one.max_running is not None:
            rival.room = min(rival.room, one.max_running - one.running)
        weight = slot_weight(self.fair_share, queue)
        here = rival.charge_at(self.forecasts[queue].clock, weight, self.fair_share.advance_s)
        rival.charged_s = one.charged_s - here
        return rival

    def gpu_run_is_first(self, owner_id: int) -> bool:
        return shares.gpu_run_is_first(self.firsts.get(owner_id, {}))

    def _oldest(self, owner_id: int) -> str:
        return min((first.id for first in self.firsts.get(owner_id, {}).values()), default=LAST)


class QueueSnapshots:
    """Cache of the latest snapshot. A snapshot takes a dozen queries, and a hundred polling scripts
    need it a hundred times a second."""

    def __init__(
        self,
        within_s: float = 60.0,
        fair_share: FairShare | None = None,
        for_s: float = 0.0,
        database: Database | None = None,
    ):
        """Configure the cache. A worker counts if it reported within `within_s` seconds. A snapshot
        is used for `for_s` seconds, and as long again while the next one is made. Without a
        `database` for that, the requesting thread makes it."""
        self.within_s = within_s
        self.fair_share = fair_share or FairShare()
        self.for_s = for_s
        self.database = database
        self._last: QueueSnapshot | None = None
        self._lock = threading.Lock()
        self._beside = ThreadPoolExecutor(1, "queue-snapshot")

    def of(self, session: Session, owners: Collection[int]) -> QueueSnapshot:
        """Return a snapshot that includes these users."""
        last = self._last
        if last is not None and last.waits.keys() >= set(owners):
            age_s = time.monotonic() - last.made_at
            if age_s < self.for_s or (age_s < 2 * self.for_s and self._is_renewed()):
                return last
        with self._lock:
            last = self._last
            if last is None or not self._serves(last, owners):
                last = self._last = self._made(session)
            if unknown := set(owners) - last.waits.keys():
                last.waits.update(_waits(session, unknown))
            return last

    def _is_renewed(self) -> bool:
        """Return whether another thread makes the next snapshot. If none does, one is started."""
        if not self._lock.locked():
            if self.database is None:
                return False
            self._beside.submit(self._renew, self.database)
        return True

    def _renew(self, database: Database) -> None:
        with suppress(*TRANSIENT_DB_ERRORS), database.snapshot() as session:
            session.connection()  # before the lock: its waiters may hold all others
            with self._lock:
                last = self._last
                if last is not None and not self._serves(last, ()):
                    made = self._made(session)
                    made.waits.update(_waits(session, last.waits))
                    self._last = made

    def _serves(self, last: QueueSnapshot, owners: Collection[int]) -> bool:
        is_new = time.monotonic() - last.made_at < self.for_s
        return is_new and last.standings.keys() >= set(owners)

    def _made(self, session: Session) -> QueueSnapshot:
        began_at = time.monotonic()
        standings = shares.standings(session, self.fair_share)
        at_level = Counter(one.level for one in standings)
        matter = [
            one for one in standings
            if one.highest and (at_level[one.level] > 1 or one.has_one_place)
        ]  # fmt: skip
        places = _places(session, self.within_s)
        return QueueSnapshot(
            fair_share=self.fair_share,
            standings={one.owner_id: one for one in standings},
            firsts=shares.firsts(session, matter) if matter else {},
            queued=_queued(session),
            slots=workers.slots(session, self.within_s),
            places={
                queue: [place for place in places[queue] if place.drained_until is None]
                for queue in Queue
            },
            drained={
                queue: [place for place in places[queue] if place.drained_until is not None]
                for queue in Queue
            },
            forecasts=forecast.forecasts(session),
            made_at=began_at,
        )


def _places(session: Session, within_s: float) -> dict[Queue, list[Place]]:
    places = rooms.places(session, within_s)
    return {queue: [place for place in places if place.queue == queue] for queue in Queue}


def _queued(session: Session) -> dict[tuple[int, Queue], tuple[int, int]]:
    jumps = func.sum(case((Experiment.priority > MAX_PRIORITY, 1), else_=0))
    rows = session.execute(
        select(Experiment.owner_id, Experiment.device, func.count(), jumps)
        .where(Experiment.status == Status.QUEUED, Experiment.held == Held.NOT)
        .group_by(Experiment.owner_id, Experiment.device)
    ).all()
    found: dict[tuple[int, Queue], tuple[int, int]] = {}
    for owner_id, device, count, jumping in rows:
        for queue in QUEUES[Device(device)]:
            before = found.get((owner_id, queue), (0, 0))
            found[owner_id, queue] = before[0] + count, before[1] + jumping
    return found


def _waits(session: Session, owners: Collection[int]) -> dict[int, Waits]:
    """Return the ids by user as one row for each priority, because rows for thousands of ids are
    slow."""
    ids = func.aggregate_strings(Experiment.id, ",")
    rows = session.execute(
        select(Experiment.owner_id, Experiment.device, Experiment.priority, ids)
        .where(Experiment.status == Status.QUEUED, Experiment.held == Held.NOT)
        .where(Experiment.owner_id.in_(owners))
        .group_by(Experiment.owner_id, Experiment.device, Experiment.priority)
    ).all()
    found: dict[int, dict[tuple[Device, int], list[str]]] = {owner_id: {} for owner_id in owners}
    for owner_id, device, priority, joined in rows:
        found[owner_id][Device(device), priority] = sorted(joined.split(","))
    return dict(found)
