"""The gate of an API process: it decides before a body is read whether and when a request is
handled.

Requests are counted first: those with a key that was valid lately for its user, all others for
their address. Then the key or the cookie is looked up. A user or an address has a few places in a
process, for this and for all that follows; further requests wait for one with their bodies unread.
The requests that have arrived are handled a few at a time, in turns between users, and the heavy
ones among them two at a time. `route.py` calls these steps in their order.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple, Self

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from cachetools import TTLCache
from fastapi import Request
from fastapi.security.utils import get_authorization_scheme_param
from sqlalchemy.orm import Session
from starlette.requests import ClientDisconnect

from service.accounts.sign_in import SignIn, caller_of_sign_in
from service.accounts.users import Caller, KeyRefused, caller_of_key, parsed
from service.db.engine import Database
from service.places import Places
from service.refusals import ApiError, unauthorized, unavailable
from service.settings import Settings
from service.web.sign_in_cookie import check_own_page, sign_in_of

log = logging.getLogger(__name__)

WINDOW_S = 10
"""Length of the window of the counts. It is shorter than the retry time of a client, so that a
client that waits as requested succeeds in the end."""
RATE_PER_ADDRESS = 500
"""Maximum number of requests of an address in a window, without a known key."""
KNOWN_S = 60.0
"""Time for which a key counts as valid after it was accepted. Later requests count for their
address until it is accepted again."""
MAX_NAME = 100
"""Maximum number of characters of a client's name that is no address."""
MAX_REQUESTS = 900
"""Maximum number of requests in a process, whose open files are often limited to 1,024."""
MAX_WAITING = 200
"""Maximum number of further requests of a user that wait for one of its places. Otherwise those of
one program would use all connections."""
PLACES_OF_USER = 8
"""Maximum number of requests of a user that a process receives, handles or answers at the same
time, without event streams and requests that wait for an experiment."""
LOOK_UPS = 4
"""Maximum number of keys that are looked up at the same time. Handlers leave them as many
connections."""
HEAVY = 2
"""Maximum number of heavy requests that are handled at the same time."""
WAIT_S, HEAVY_WAIT_S = 10.0, 15.0
"""Maximum seconds that a request waits for a place, and a heavy one for its turn."""


class Credential(NamedTuple):
    """The key of a request or, without one, the sign-in of a browser."""

    key: str | None
    sign_in: SignIn | None

    @classmethod
    def of(cls, request: Request) -> Self:
        """Return the credential that a request is judged by. A proxy may add a password of its own,
        which all of its users have in common."""
        for authorization in request.headers.getlist("Authorization"):
            scheme, key = get_authorization_scheme_param(authorization)
            if scheme.lower() == "bearer" and key:
                return cls(key, None)
        return cls(None, sign_in_of(request))

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(repr(self).encode()).digest()


Key = int | str
"""The id of a user or, without a valid key, an address."""


@dataclass
class _Window:
    """The requests of a user or an address in some seconds."""

    began_at: float
    requests: int = 0


class Gate:
    """The counts and the places of a process."""

    def __init__(self, settings: Settings, database: Database):
        self._database = database
        self._rate_per_user = settings.rate_per_user
        self._windows: TTLCache[Key, _Window] = TTLCache(100_000, ttl=WINDOW_S)
        self._known: TTLCache[bytes, int] = TTLCache(10_000, ttl=KNOWN_S)
        self._look_ups = CapacityLimiter(LOOK_UPS)
        self._arriving = Places(MAX_REQUESTS, PLACES_OF_USER)
        handled = max(2, settings.api_connections - LOOK_UPS)
        self._writing = Places(handled // 2, max(1, handled // 3))
        self._reading = Places(handled - handled // 2, max(1, handled // 3))
        self._heavy = Places(HEAVY, 1)
        self._has_warned = False  # of a proxy that is not trusted

    def count(self, request: Request, credential: Credential) -> Key:
        """Count a request, and return for whom. Raises ApiError (429) if that user or address sends
        too many."""
        self._warn_of_proxy(request)
        user_id = self._known.get(credential.digest)
        if user_id is not None:
            key: Key = user_id
            most, whose = self._rate_per_user, "you"
        else:
            key = network(request)
            most, whose = RATE_PER_ADDRESS, "your address, without a valid key,"
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(time.monotonic())
        window.requests += 1
        if window.requests > most:
            after_s = max(1, math.ceil(window.began_at + WINDOW_S - time.monotonic()))
            detail = (
                f"{whose} may send {most} requests in {WINDOW_S} s: nothing was changed, try again "
                f"in {after_s} s"
            )
            raise _too_many("rate_exceeded", detail, after_s)
        return key

    async def caller(self, request: Request, credential: Credential) -> Caller:
        """Return the owner of the key, or the user of the signed-in browser. Raises ApiError (401,
        or 403 if another site sent the request). A key is looked up at every request: a revoked key
        is refused from that moment on, in any process."""
        try:
            if credential.key is not None:
                parsed(credential.key)  # a mistyped key costs no query
                find = partial(caller_of_key, key=credential.key)
            elif credential.sign_in is not None:
                check_own_page(request)
                find = partial(caller_of_sign_in, sign_in=credential.sign_in)
            else:
                detail = "give a valid API key (Authorization: Bearer mpt_…), or sign in again"
                raise unauthorized(detail)
            user, request.state.unnoted = await run_sync(
                self._look_up, find, limiter=self._look_ups
            )
        except KeyRefused as refused:
            self._known.pop(credential.digest, None)
            raise unauthorized(str(refused)) from None
        self._known[credential.digest] = user.id
        return user

    def _look_up(self, find: Callable[[Session], tuple[Caller, bool]]) -> tuple[Caller, bool]:
        with self._database.snapshot() as session:
            return find(session)

    @asynccontextmanager
    async def arriving(self, key: Key) -> AsyncIterator[Callable[[], None]]:
        """Hold one of a user's places, or of an address that has no key, while the block runs, or
        until the yielded function is called. Raises ApiError (429) if none becomes free, or if too
        many wait."""
        detail = f"{PLACES_OF_USER} requests of yours are under way, the maximum: try again"
        busy = _too_many("too_many_at_once", detail, after_s=1)
        if self._arriving.is_full(key) and self._arriving.waiting(key) >= MAX_WAITING:
            raise busy
        try:
            async with asyncio.timeout(WAIT_S):
                leave = await self._arriving.take(key)
        except TimeoutError:
            raise busy from None
        try:
            yield leave
        finally:
            leave()

    @asynccontextmanager
    async def handled(
        self, key: Key, is_writing: bool, is_heavy: bool
    ) -> AsyncIterator[Callable[[], None]]:
        """Hold a place of the process while the block runs, or until the yielded function is
        called: a request that sends its answer needs none. Raises ApiError (503) if none becomes
        free."""
        with ExitStack() as places:
            try:
                if is_heavy:
                    async with asyncio.timeout(HEAVY_WAIT_S):
                        places.callback(await self._heavy.take(key))
                async with asyncio.timeout(WAIT_S):
                    kind = self._writing if is_writing else self._reading
                    places.callback(await kind.take(key))
            except TimeoutError:
                detail = "too many requests wait for their turn; nothing was changed, try again"
                raise unavailable("busy", detail) from None
            yield places.close

    def _warn_of_proxy(self, request: Request) -> None:
        """Log once that a proxy seems not to be trusted."""
        forwarded = request.headers.get("X-Forwarded-For", "")
        address = request.client.host if request.client else ""
        if forwarded and not self._has_warned and address not in forwarded:
            self._has_warned = True
            log.warning(
                "%s sent X-Forwarded-For, which is ignored: its clients share one limit of "
                "requests. If it is your proxy, set FORWARDED_ALLOW_IPS to this address",
                address,
            )


def _too_many(reason: str, detail: str, after_s: int) -> ApiError:
    headers = {"Retry-After": str(after_s)}
    return ApiError(HTTPStatus.TOO_MANY_REQUESTS, reason, detail, headers=headers)


def network(request: Request) -> str:
    """Return the address of a client, or the /64 network of an IPv6 address, because one holder has
    all of it. A proxy may name a client by any text."""
    address = request.client.host if request.client else ""
    try:
        ip = ip_address(address.partition("%")[0])  # without the zone
    except ValueError:
        return address[:MAX_NAME] or "here"  # of a Unix socket
    if isinstance(ip, IPv6Address):
        return str(ip.ipv4_mapped or ip.exploded[:19])
    return str(ip)


async def received(request: Request, max_bytes: int, within_s: float) -> bytes:
    """Return the body of a request. Raises ApiError if it is too large (413) or too slow (408)."""
    body = bytearray()
    try:
        too_large = int(request.headers.get("Content-Length", 0)) > max_bytes
        async with asyncio.timeout(within_s):
            stream = request.stream()
            while not too_large and (piece := await anext(stream, None)) is not None:
                body += piece
                too_large = len(body) > max_bytes
    except TimeoutError:
        detail = f"a body must arrive within {within_s:g} s"
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, "body_stalled", detail) from None
    except ClientDisconnect:
        detail = "the client has gone before its body arrived"
        raise ApiError(HTTPStatus.REQUEST_TIMEOUT, "client_gone", detail) from None
    if too_large:
        detail = f"a body has at most {max_bytes} bytes"
        raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", detail)
    return bytes(body)
