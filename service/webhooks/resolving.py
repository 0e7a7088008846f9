"""Resolve the host names that users enter. A slow name server that one user chose holds up nobody
else.

A look-up cannot be stopped: its thread stays until the system's resolver gives up. So each user has
a few threads of their own, and the caller stops waiting earlier.
"""

import asyncio
import socket
import threading
from collections import defaultdict
from concurrent.futures import Future

LOOK_UPS = 2
"""Maximum number of look-ups of one user at the same time."""
LOOK_UP_S = 5.0
"""Seconds to wait for an address."""
POLL_S = 0.05

_slots: defaultdict[int, threading.Semaphore] = defaultdict(lambda: threading.Semaphore(LOOK_UPS))
"""Free look-ups by user id."""


async def addresses_of(host: str, port: int, owner_id: int) -> list[str]:
    """Return the addresses of a host. Raises TimeoutError, OSError and UnicodeError."""
    async with asyncio.timeout(LOOK_UP_S):
        slots = _slots[owner_id]
        while not slots.acquire(blocking=False):
            await asyncio.sleep(POLL_S)
        found: Future[list[str]] = Future()
        found.set_running_or_notify_cancel()  # from now on only the thread ends it
        threading.Thread(target=_look_up, args=(host, port, found, slots), daemon=True).start()
        return await asyncio.wrap_future(found)


def _look_up(host: str, port: int, found: Future[list[str]], slots: threading.Semaphore) -> None:
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found.set_result([str(row[4][0]) for row in rows])
    except BaseException as error:
        found.set_exception(error)
    finally:
        slots.release()
