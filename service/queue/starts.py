"""A simulation of claims: the next starts on the workers of one queue.

It charges users as `shares.standings` does: a current run counts for its time so far, and for at
least `advance_s`. Each run is assumed to last as long as the last ones did. The decay of usage is
ignored, because it changes little during the simulated time.
"""

import heapq
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from service.fair_share import FairShare
from service.queue.forecast import Forecast
from service.queue.workers import Slots

MAX_STARTS = 200
"""Number of starts that are simulated individually. Later starts are distributed among users by
their shares."""


@dataclass(slots=True)
class Rival:
    """A user in the simulation. Times are in seconds."""

    owner_id: int
    shares: int
    waiting: float
    """Experiments in the queue; without end for the user whose places are asked for."""
    jumping: int
    """Number of waiting experiments with a priority above everyone's."""
    room: float
    """Number of runs that may still start under its limit."""
    charged_s: float
    """Decayed usage, without the current runs of this queue."""
    next_id: str
    """Id of the user's next experiment. Of two users at one level, the older experiment starts
    first."""
    began: list[float] = field(default_factory=list)
    """Start times of its current runs in this queue."""

    def charge_at(self, at: float, weight: float, advance_s: float) -> float:
        lasted = (max(at - began, advance_s) for began in self.began)
        return self.charged_s + weight * math.fsum(lasted)

    def end(self, began: float, at: float, weight: float) -> None:
        self.began.remove(began)
        self.charged_s += weight * (at - began)
        self.room += 1

    def start(self, at: float) -> None:
        self.began.append(at)
        self.waiting -= 1
        self.jumping -= self.jumping > 0
        self.room -= 1


class Starts:
    """Simulated positions of one user's experiments in a queue, computed only as far as
    requested."""

    def __init__(
        self,
        owner_id: int,
        users: list[Rival],
        slots: Slots,
        forecast: Forecast,
        fair_share: FairShare,
        weight: float,
    ):
        """Prepare the simulation of one queue. `users` are all users with waiting or current runs
        in it, including the owner."""
        self._users = {one.owner_id: one for one in users}
        self._me = self._users[owner_id]
        self._weight, self._advance_s = weight, fair_share.advance_s
        self._usual_s = forecast.usual_s(fair_share)
        self._now = forecast.clock
        self._idle = slots.idle
        self._number = count()
        self._ends: list[tuple[float, int, int | None, float]] = []
        for run in forecast.running:
            end = forecast.clock + self._usual_s if run.end is None else run.end
            self._take_slot(max(forecast.clock, end), run.owner_id, run.started_at)
        for _ in range(slots.workers - slots.idle - len(forecast.running)):  # not claimed yet
            self._take_slot(forecast.clock + self._usual_s, None, forecast.clock)
        if not self._idle and not self._ends:
            self._idle = 1  # no worker serves this queue yet: assume one
        self._places: list[int] = []
        self._started = 0
        self._steps = self._simulated()
        self._lock = threading.Lock()

    def place(self, own: int) -> int:
        """Return the number of starts before the user's experiment at this position among its
        own."""
        with self._lock:  # requests share the simulation of a snapshot
            while own >= len(self._places) and next(self._steps, None) is not None:
                pass
            return self._places[own] if own < len(self._places) else self._later(own)

    def _simulated(self) -> Iterator[bool]:
        while self._started < MAX_STARTS:
            chosen = self._chosen() if self._idle else None
            if chosen is None:
                if not self._ends:
                    return
                self._end_next()
                continue
            if chosen is self._me:
                self._places.append(self._started)
            chosen.start(self._now)
            self._idle -= 1
            self._started += 1
            self._take_slot(self._now + self._usual_s, chosen.owner_id, self._now)
            yield True

    def _take_slot(self, until: float, owner_id: int | None, began: float) -> None:
        heapq.heappush(self._ends, (until, next(self._number), owner_id, began))

    def _end_next(self) -> None:
        self._now, _, owner_id, began = heapq.heappop(self._ends)
        self._idle += 1
        if owner_id in self._users:
            self._users[owner_id].end(began, self._now, self._weight)

    def _chosen(self) -> Rival | None:
        able = [one for one in self._users.values() if one.waiting > 0 and one.room > 0]
        return min(able, key=self._turn, default=None)

    def _turn(self, one: Rival) -> tuple[bool, float, str]:
        """Return the sort key of `shares.in_turn`."""
        charge = one.charge_at(self._now, self._weight, self._advance_s)
        return not one.jumping, charge / one.shares, one.next_id

    def _later(self, own: int) -> int:
        """Return the place of an experiment beyond the simulated starts. Other users are assumed to
        start until their level equals this user's."""
        charge = self._weight * self._usual_s
        own -= len(self._places)
        mine = self._me.charge_at(self._now, self._weight, self._advance_s) + own * charge
        place = self._started + own
        for one in self._users.values():
            if one is not self._me:
                theirs = one.charge_at(self._now, self._weight, self._advance_s)
                runs = math.ceil((mine / self._me.shares * one.shares - theirs) / charge)
                place += int(max(one.jumping, min(one.waiting, runs), 0))
        return place
