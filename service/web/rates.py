"""Limit the rate of requests: by user over all its keys, or by address without a known valid key.

Requests are counted before anything else is done with them. Requests with a key that was recently
valid in this process count for its user. All others count for their address, so that guessing keys,
or sending requests that are refused before the key is checked, is soon stopped.
"""

import hashlib
import logging
import math
import time
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple, Self

from cachetools import TLRUCache, TTLCache
from fastapi.security.utils import get_authorization_scheme_param
from limits import RateLimitItemPerSecond
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.errors import StorageError
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from service.accounts.sign_ins import COOKIE
from service.refusals import ApiError
from service.settings import Settings
from service.web.errors import problem_response

log = logging.getLogger(__name__)

WINDOW_S = 10
"""Length of the window of the counts. It is shorter than the retry time of a client, so that a
client that waits as requested succeeds in the end."""
KNOWN_S = 60.0
"""Time for which a key counts as valid after it was accepted. Later requests count for their
address until it is accepted again."""
REDIS_TIMEOUT_S = 0.5
REDIS_ASLEEP_S = 5.0
"""Time without requests to Redis after it did not answer."""
PROBE = "/healthz"
MAX_NAME = 100
"""Maximum number of characters of a client's name, if it is not an address, by which its requests
are counted."""


@dataclass(frozen=True, slots=True)
class RateState:
    """State of a limit after a request."""

    policy: str
    most: int
    asked: int
    reset_s: int

    @property
    def exceeded(self) -> bool:
        return self.asked > self.most

    @property
    def headers(self) -> dict[str, str]:
        """Headers of draft-ietf-httpapi-ratelimit-headers-10, and Retry-After if the limit is
        exceeded."""
        left = max(0, self.most - self.asked)
        told = {
            "RateLimit-Policy": f'"{self.policy}";q={self.most};w={WINDOW_S}',
            "RateLimit": f'"{self.policy}";r={left};t={self.reset_s}',
        }
        return {**told, "Retry-After": str(self.reset_s)} if self.exceeded else told


class Credential(NamedTuple):
    """The key of a request or, without one, the cookie of a signed-in browser."""

    key: str | None
    cookie: str | None

    @classmethod
    def of(cls, headers: Headers) -> Self:
        """Return the credential that a request is judged by. A proxy may add a password of its own,
        which all of its users have in common."""
        for one in headers.getlist("Authorization"):
            scheme, key = get_authorization_scheme_param(one)
            if scheme.lower() == "bearer" and key:
                return cls(key, None)
        return cls(None, cookie_parser("; ".join(headers.getlist("Cookie"))).get(COOKIE))


class Rates:
    """The counts: in Redis for all API processes of a lab; in this process without Redis, and while
    Redis does not answer."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._near = MemoryStorage()
        self._far = _redis(settings)
        self._far_asleep_until = 0.0
        self._ends_at: TLRUCache[str, float] = TLRUCache(10_000, lambda _, end, now: end, time.time)
        """End of the current window of each key, so that Redis is not asked at each request."""
        self._known: TTLCache[bytes, int] = TTLCache(10_000, ttl=KNOWN_S)

    def know(self, credential: Credential, user_id: int) -> None:
        """Note that a user's credential was accepted."""
        self._known[_digest(credential)] = user_id

    def forget(self, credential: Credential) -> None:
        """Note that a credential was refused."""
        self._known.pop(_digest(credential), None)

    def user_of(self, credential: Credential) -> int | None:
        """Return the id of the user whose credential this was when it was last accepted."""
        return self._known.get(_digest(credential))

    async def count(self, credential: Credential, address: str | None) -> RateState:
        """Count a request for its user or address."""
        user_id = self.user_of(credential)
        if user_id is not None:
            return await self._count("user", str(user_id), self._settings.rate_per_user)
        return await self._count("address", network(address), self._settings.rate_per_address)

    async def count_probe(self, address: str | None) -> RateState:
        """Count a request for the health of this process. It is counted in this process, separately
        from other requests, so that a load balancer's probes are always answered, even if many
        other requests come from its address."""
        most = self._settings.rate_per_address
        return await self._hit(self._near, "health", _key("health", network(address), most), most)

    async def _count(self, policy: str, name: str, most: int) -> RateState:
        key = _key(policy, name, most)
        if self._far is not None and time.monotonic() >= self._far_asleep_until:
            try:
                return await self._hit(self._far, policy, key, most)
            except (StorageError, OSError) as error:
                log.warning(
                    "requests are counted in this process, because Redis is unreachable: %s", error
                )
                self._far_asleep_until = time.monotonic() + REDIS_ASLEEP_S
        return await self._hit(self._near, policy, key, most)

    async def _hit(
        self, storage: MemoryStorage | RedisStorage, policy: str, key: str, most: int
    ) -> RateState:
        asked = await storage.incr(key, WINDOW_S)
        ends_at = self._ends_at.get(key)
        if ends_at is None:
            ends_at = self._ends_at[key] = await storage.get_expiry(key)
        reset_s = min(WINDOW_S, max(1, math.ceil(ends_at - time.time())))
        return RateState(policy, most, asked, reset_s)


def _redis(settings: Settings) -> RedisStorage | None:
    url = settings.broker_url or ""
    if not url.startswith(("redis://", "rediss://")):
        return None
    return RedisStorage(
        f"async+{url}",
        wrap_exceptions=True,
        implementation="redispy",
        socket_timeout=REDIS_TIMEOUT_S,
        socket_connect_timeout=REDIS_TIMEOUT_S,
    )


def _digest(credential: Credential) -> bytes:
    return hashlib.sha256(repr(credential).encode()).digest()


def _key(policy: str, name: str, most: int) -> str:
    return RateLimitItemPerSecond(most, WINDOW_S, namespace="MPT").key_for(policy, name)


def network(address: str | None) -> str:
    """Return an address, or the /64 network of an IPv6 address, because one holder has all of it. A
    proxy may name a client by any text."""
    try:
        parsed = ip_address((address or "").partition("%")[0])  # without the zone
    except ValueError:
        return (address or "here")[:MAX_NAME]  # of a Unix socket
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or parsed.exploded[:19])
    return str(parsed)


class RateLimits:
    """ASGI middleware: 429 for callers over the limit, and headers with the remaining number of
    requests."""

    def __init__(self, app: ASGIApp, rates: Rates):
        self.app = app
        self.rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        address = scope["client"][0] if scope.get("client") else None
        if scope["path"] == PROBE:
            standing = await self.rates.count_probe(address)
        else:
            standing = await self.rates.count(Credential.of(Headers(scope=scope)), address)
        scope.setdefault("state", {})["headers"] = standing.headers
        if standing.exceeded:
            return await _too_many(standing)(scope, receive, send)
        await self.app(scope, receive, send)


def _too_many(standing: RateState) -> ASGIApp:
    whose = "you" if standing.policy == "user" else "your address, without a valid key,"
    detail = (
        f"{whose} may send {standing.most} requests in {WINDOW_S} s: "
        f"nothing was changed, try again in {standing.reset_s} s"
    )
    return problem_response(ApiError(HTTPStatus.TOO_MANY_REQUESTS, "rate_exceeded", detail))
