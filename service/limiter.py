"""Limit how much one user does at once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from weakref import WeakValueDictionary


class FairLimiter:
    """Limits the concurrent requests of a process, and those of one user, so that the long requests
    of one user do not stop all others. Long ones have at most half of the places, or as many as
    `long_ones`."""

    def __init__(self, count: int, of_user: int, long_ones: int | None = None) -> None:
        self.taken = 0
        """Number of places that are held."""
        self._of_user_count = max(1, of_user)
        self._all = asyncio.Semaphore(count)
        self._long = asyncio.Semaphore(long_ones or max(1, count // 2))
        self._of_users: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def one(
        self, user_id: int | None, *, is_long: Callable[[], Awaitable[bool]] | None = None
    ) -> AsyncIterator[None]:
        """Hold a place while the block runs. Wait for one first: the user's own ones come first, so
        that nobody holds a place of all while it waits for these. `is_long` is asked then, of one
        request of a user at a time."""
        async with self.own(user_id):
            long = self._long if is_long and await is_long() else nullcontext()
            async with long, self.shared():
                yield

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold a place of all. The caller holds one of the user's own."""
        async with self._all:
            self.taken += 1
            try:
                yield
            finally:
                self.taken -= 1

    def has_own(self, user_id: int | None) -> bool:
        """Return whether the user has an own place that is free at once."""
        limit = None if user_id is None else self._of_users.get(user_id)
        return limit is None or not limit.locked()

    def is_full(self, user_id: int) -> bool:
        """Return whether the next request of this user would wait."""
        limit = self._of_users.get(user_id)
        return self._all.locked() or (limit is not None and limit.locked())

    def own(self, user_id: int | None) -> AbstractAsyncContextManager[None]:
        """Hold one of the user's own places only, of which there are `of_user`."""
        if user_id is None:
            return nullcontext()
        limit = self._of_users.get(user_id)
        if limit is None:
            limit = self._of_users[user_id] = asyncio.Semaphore(self._of_user_count)
        return limit
