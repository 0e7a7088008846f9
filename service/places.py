"""Places of requests, given in turns to the users that wait."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from itertools import count as count_from

from cachetools import LRUCache

KNOWN = 1000
"""Number of users whose last turn is remembered."""

AHEAD = 20
"""Lead of a user with one waiting request over those with several: ten turns, each of which counts
at its begin and at its end."""


class Places:
    """Limits how many requests a process handles at the same time, and how many of one user. A free
    place goes to the waiting user who has the fewest, and among these to the one whose last turn is
    the longest ago, with a lead for who waits for one answer only."""

    def __init__(self, count: int, of_user: int) -> None:
        self._free = count
        self._of_user = of_user
        self._taken = Counter[Hashable]()
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """Requests that wait, by user."""
        self._last_turn: LRUCache[Hashable, int] = LRUCache(KNOWN)
        """Number of the last turn of each user. It is kept while the user has no request: who sends
        few goes before who sends many."""
        self._turns = count_from(1)

    def is_full(self, user: Hashable) -> bool:
        """Return whether the next request of this user would wait."""
        return self._free == 0 or self._taken[user] >= self._of_user

    def waiting(self, user: Hashable) -> int:
        """Return how many requests of a user wait."""
        return len(self._waiting.get(user, ()))

    @asynccontextmanager
    async def place(self, user: Hashable) -> AsyncIterator[None]:
        """Wait for a place of the user, and hold it while the block runs."""
        give_back = await self.take(user)
        try:
            yield
        finally:
            give_back()

    async def take(self, user: Hashable) -> Callable[[], None]:
        """Wait for a place of the user. Return the function that gives it back; later calls of it
        do nothing."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(user, turn)
            else:
                self._give_back(user)
            raise
        is_held = True

        def give_back() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._give_back(user)

        return give_back

    def _give(self) -> None:
        while self._free:
            waiting = [user for user in self._waiting if self._taken[user] < self._of_user]
            if not waiting:
                return
            user = min(waiting, key=lambda user: (self._taken[user], self._rank(user)))
            turns = self._waiting[user]
            turn = turns.popleft()
            if not turns:
                del self._waiting[user]
            if not turn.cancelled():
                turn.set_result(None)
                self._free -= 1
                self._taken[user] += 1
                self._last_turn[user] = next(self._turns)

    def _rank(self, user: Hashable) -> int:
        """Return the number of the user's last turn, less its lead."""
        last = self._last_turn.get(user, 0)
        return last - AHEAD if len(self._waiting[user]) == 1 else last

    def _give_back(self, user: Hashable) -> None:
        self._free += 1
        self._taken[user] -= 1
        if not self._taken[user]:
            del self._taken[user]
        self._last_turn[user] = next(self._turns)
        self._give()

    def _forget(self, user: Hashable, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(user, deque())
        if turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[user]
