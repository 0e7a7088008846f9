"""One large computation at a time in a process, so that small requests do not share the interpreter
with several."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock
from weakref import WeakValueDictionary

LARGE = 256
"""Number of parts, such as points or experiments, from which a computation is large."""


class Turns:
    """A lock that is handed to the thread that has waited longest. threading's own may be taken by
    another one first."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._is_taken = False
        self._waiting: deque[Event] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return
            turn = Event()
            self._waiting.append(turn)
        turn.wait()

    def __exit__(self, *_: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False


_ONE_AT_A_TIME = Turns()
_GUARD = Lock()
_of_users: "WeakValueDictionary[int, Lock]" = WeakValueDictionary()


@contextmanager
def in_turn(user_id: int, parts: int) -> Iterator[None]:
    """Wait until no other large computation is under way, if this one is large. Of each user one
    waits for those of others, so that nobody has several places in the queue. Call it outside of
    transactions."""
    if parts < LARGE:
        yield
        return
    with _GUARD:
        own = _of_users.setdefault(user_id, Lock())
    with own, _ONE_AT_A_TIME:
        yield
