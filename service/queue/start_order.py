"""The order in which waiting experiments start in one queue, by a formula.

A free slot goes to the account with the lowest charge relative to its shares, and each start adds
the charge of a usual run. So the k-th waiting experiment of an account starts when its level is

    tag = (charged_s + k · usual_s) / shares

and its position is k plus the number of lower tags of other accounts, at most as many as each of
them has waiting. In a project, k is found by the same formula from the tags of its members.
Experiments with a priority above everyone's come first. A limit of concurrent runs allows a user
only some starts in the time until then.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.queue.shares import Account, Standing
from service.queue.workers import Slots

ROUNDING = 1e-6
"""Tags that differ by less than this part of a run are equal."""
MAX_STEPS = 5
"""Maximum number of steps towards a position that agrees with the time until it."""
CONTENDER = np.dtype(
    [
        ("owner_id", np.int64),  # 0 for a whole project
        ("project_id", np.int64),
        ("shares", float),
        ("charged_s", float),
        ("waiting", float),
        ("jumping", float),  # of these, experiments with a priority above everyone's
        ("room", float),  # runs that may start now under the user's limits
        ("limit", float),  # concurrent runs in this queue that the limits allow
        ("first_id", "U32"),  # of two users with the same tag, the older experiment starts first
    ]
)
"""An account, or a member of a project, with waiting experiments that may start."""


@dataclass(frozen=True, slots=True)
class StartOrder:
    """The order of starts in one queue."""

    accounts: NDArray[np.void]
    members: NDArray[np.void]
    """Members of projects."""
    slots: Slots
    max_slots: float
    """Maximum number of workers that the runs of one user may have."""
    advance_s: float
    """Charge of a run that has just started."""
    usual_s: float
    """Charge of a whole run."""

    def position(self, user: Standing, first_id: str, before: int, jumps: bool) -> int:
        """Return how many experiments start before one of this user, which has a priority above
        everyone's if it `jumps`. `before` of them are the user's own in the account, and the user's
        next one there is `first_id`."""
        if user.project_id:
            before = self.position_in_project(user, first_id, before, jumps)
        owner_id, project_id = user.member.account
        is_mine = self.accounts["owner_id"] == owner_id
        others = self.accounts[~(is_mine & (self.accounts["project_id"] == project_id))]
        return self._position(user.account, others, first_id, before, jumps)

    def position_in_project(self, user: Standing, first_id: str, before: int, jumps: bool) -> int:
        """Return how many experiments of the user's project start before one of this user."""
        in_project = self.members[self.members["project_id"] == user.project_id]
        others = in_project[in_project["owner_id"] != user.owner_id]
        return self._position(user, others, first_id, before, jumps)

    def _position(
        self,
        mine: Standing | Account,
        others: NDArray[np.void],
        first_id: str,
        before: int,
        jumps: bool,
    ) -> int:
        most = others["jumping" if jumps else "waiting"]
        least = 0.0 if jumps else others["jumping"]
        wins_ties = others["first_id"] < first_id
        rounds, position = 0.0, -1  # rounds: run times until the start
        for _ in range(MAX_STEPS):
            charge_s = self.usual_s if rounds else self.advance_s
            tag = (mine.charged_s + before * charge_s) / mine.shares
            runs = (tag * others["shares"] - others["charged_s"]) / charge_s
            lower = np.where(wins_ties, np.floor(runs + ROUNDING) + 1, np.ceil(runs - ROUNDING))
            able = np.floor(others["room"] + others["limit"] * rounds)
            starts = np.minimum(np.clip(lower, least, most), able)
            position, last = before + int(starts.sum()), position
            if position == last:
                break
            rounds = max(0.0, (position + 1 - self.slots.idle) / self.slots.workers)
        return position
