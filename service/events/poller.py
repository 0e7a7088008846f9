"""Look for changes in the database, once for all listeners of a process, and only while there are
listeners. The poller wakes the listeners that a change concerns, and each reads its own events. A
waiting listener holds neither a thread nor a connection."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from sqlalchemy.orm import Session

from service.accounts.users import Caller
from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.events.changes import Changes, Look, Subject, refused
from service.places import Places

log = logging.getLogger(__name__)

PERIOD_S = 0.25
"""Interval between polls. A new listener is polled for at once."""
ACCESS_S = 1.0
"""Interval of the check whether listeners may still listen."""
READS_AT_ONCE = 3
"""Maximum number of concurrent reads of all listeners. A single user gets at most one less. The
other threads and connections serve requests."""
MAX_USER_STREAMS, MAX_STREAMS = 20, 300
"""Maximum number of listeners of a user, and of all. The server counts them as connections, and
answers nobody above its limit of these."""
MAX_PENDING = 20_000
"""Maximum number of events that wait for a listener whose client does not read. Then it reads the
present state in their place."""

Answer = TypeVar("Answer")


class Listener:
    """A listener that is woken when something happens to its subject."""

    def __init__(self, subject: Subject, user: Caller):
        self.subject = subject
        self.user = user
        self.refused = False
        """True if the key was revoked, or the subject is no longer readable by the user."""
        self.cut = False
        """True if the listener will not be woken any more: the server stops, or polling has failed.
        """
        self.needs_state = subject.what != "experiment"
        """True if the listener must read the present state of several experiments."""
        self.pending: list[int] = []
        """Events since then, which it has not read yet. Not used for one experiment."""
        self.has_ended = False
        """True if all experiments of its sweep had ended at the last event."""
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    def note(self, look: Look, is_first: bool) -> None:
        """Note the changes of the subject, and wake if there are any or at the first look."""
        events = look.events.get(self.subject)
        has_ended = self.subject in look.ended
        is_missed = self.subject in look.missed
        if events is None and not (has_ended or is_missed or is_first):
            return
        self.has_ended = has_ended
        if self.subject.what != "experiment" and not self.needs_state:
            self.pending += events or []
            self.needs_state = is_missed or len(self.pending) > MAX_PENDING
        self.wake()

    async def wait(self, seconds: float) -> bool:
        """Wait until something has happened since the last wait. Return False after a timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True


class Poller:
    """Polls for all listeners. Use it in one event loop."""

    def __init__(self, database: Database):
        self._closing = False
        self._database = database
        self._changes = Changes()
        self.floor = 0
        """Later polls report no event up to this id."""
        self._listeners: set[Listener] = set()
        self._new: set[Listener] = set()
        """Listeners added since the last poll began. They may have missed earlier events."""
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._access_due = 0.0
        self._reads = Places(READS_AT_ONCE, of_user=READS_AT_ONCE - 1)
        self._looked_at = 0.0

    @property
    def looked_at(self) -> float | None:
        """Time of the last poll on the monotonic clock; None if there are no listeners."""
        return self._looked_at if self._listeners else None

    def has_room(self, user: Caller) -> bool:
        """Return whether the user may open another stream."""
        if len(self._listeners) >= MAX_STREAMS:
            return False
        return sum(one.user.id == user.id for one in self._listeners) < MAX_USER_STREAMS

    @contextmanager
    def listening(self, subject: Subject, user: Caller) -> Iterator[Listener]:
        """Yield a listener for the time of the block. The first look wakes it, too."""
        listener = Listener(subject, user)
        self._listeners.add(listener)
        self._new.add(listener)
        self._asked.set()
        listener.cut = self._closing
        if self._task is None and not self._closing:
            self._changes = Changes()
            self._looked_at = time.monotonic()
            self._task = asyncio.create_task(self._run())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            self._new.discard(listener)

    async def read(
        self,
        user: Caller,
        ask: Callable[[Session], Answer],
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> Answer:
        """Read in a thread on behalf of a stream or a wait, however long it waits for a place. The
        check is called then."""
        async with self._reads.place(user.id):
            if check is not None:
                await check()
            return await self.ask(ask)

    async def ask(self, ask: Callable[[Session], Answer]) -> Answer:
        """Read in a thread. The caller holds a place."""
        return await asyncio.to_thread(self._ask, ask)

    def _ask(self, ask: Callable[[Session], Answer]) -> Answer:
        with self._database.snapshot() as session:
            return ask(session)

    def close(self) -> None:
        """End all streams because the server stops."""
        self._closing = True
        self._cut_all()

    def _cut_all(self) -> None:
        for listener in self._listeners:
            listener.cut = True
            listener.wake()

    async def _run(self) -> None:
        try:
            while self._listeners and not self._closing:
                self._asked.clear()
                try:
                    await self._look()
                except TRANSIENT_DB_ERRORS as error:
                    log.warning("the database is unreachable: %s", error)
                    await asyncio.sleep(PERIOD_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(PERIOD_S):
                        await self._asked.wait()
        except Exception:
            log.exception("the poller has failed: all listeners must reconnect")
        finally:
            self._task = None
            self._cut_all()

    async def _look(self) -> None:
        new = set(self._new)
        listened = {listener.subject for listener in self._listeners}
        look = partial(
            self._changes.look, listened=listened, new={listener.subject for listener in new}
        )
        changes = await asyncio.to_thread(self._ask, look)
        self._looked_at = time.monotonic()
        self.floor = changes.floor
        self._new -= new
        for listener in self._listeners - self._new:  # the next look is the first one for `_new`
            listener.note(changes, listener in new)
        if time.monotonic() >= self._access_due:
            await self._refuse()
            self._access_due = time.monotonic() + ACCESS_S

    async def _refuse(self) -> None:
        callers = {(one.subject, one.user) for one in self._listeners}
        over = await asyncio.to_thread(self._ask, lambda session: refused(session, callers))
        for listener in self._listeners:
            if (listener.subject, listener.user) in over:
                listener.refused = True
                listener.wake()
