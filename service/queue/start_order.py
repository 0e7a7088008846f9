"""The order in which waiting experiments start in one queue, by a formula.

A free slot goes to the user with the lowest charge relative to its shares, and each start adds the
charge of a usual run. So the k-th waiting experiment of a user starts when the user's level is

    tag = (charged_s + k · usual_s) / shares

and its position is k plus the number of lower tags of other users, at most as many as each of them
has waiting. Experiments with a priority above everyone's come first. A limit of concurrent runs
allows a user only some starts in the time until then.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.queue.shares import Standing
from service.queue.workers import Slots

ROUNDING = 1e-6
"""Tags that differ by less than this part of a run are equal."""
MAX_STEPS = 5
"""Maximum number of steps towards a position that agrees with the time until it."""
CONTENDER = np.dtype(
    [
        ("owner_id", np.int64),
        ("shares", float),
        ("charged_s", float),
        ("waiting", float),
        ("jumping", float),  # of these, experiments with a priority above everyone's
        ("room", float),  # runs that may start now under the user's limits
        ("limit", float),  # concurrent runs in this queue that the limits allow
        ("first_id", "U32"),  # of two users with the same tag, the older experiment starts first
    ]
)
"""A user with waiting experiments that may start."""


@dataclass(frozen=True, slots=True)
class StartOrder:
    """The order of starts in one queue."""

    contenders: NDArray[np.void]
    slots: Slots
    max_slots: float
    """Maximum number of workers that the runs of one user may have."""
    advance_s: float
    """Charge of a run that has just started."""
    usual_s: float
    """Charge of a whole run."""

    def position(self, user: Standing, first_id: str, before: int, jumps: bool) -> int:
        """Return how many experiments start before one of this user, which has a priority above
        everyone's if it `jumps`. `before` of them are the user's own, and the user's next one is
        `first_id`."""
        others = self.contenders[self.contenders["owner_id"] != user.owner_id]
        most = others["jumping" if jumps else "waiting"]
        least = 0.0 if jumps else others["jumping"]
        wins_ties = others["first_id"] < first_id
        rounds, position = 0.0, -1  # rounds: run times until the start
        for _ in range(MAX_STEPS):
            charge_s = self.usual_s if rounds else self.advance_s
            tag = (user.charged_s + before * charge_s) / user.shares
            runs = (tag * others["shares"] - others["charged_s"]) / charge_s
            lower = np.where(wins_ties, np.floor(runs + ROUNDING) + 1, np.ceil(runs - ROUNDING))
            able = np.floor(others["room"] + others["limit"] * rounds)
            starts = np.minimum(np.clip(lower, least, most), able)
            position, last = before + int(starts.sum()), position
            if position == last:
                break
            rounds = max(0.0, (position + 1 - self.slots.idle) / self.slots.workers)
        return position
