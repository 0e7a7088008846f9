"""Routes that authenticate the caller before they read the body. Request bodies have limits of size
and time, and a worker thread parses them with a strict JSON parser. Also ids in paths."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Annotated, Any, TypeVar, get_args

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidatorFunctionWrapHandler, WrapValidator
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException

from mptcore.specs import SpecError, parse_json
from service.refusals import ApiError, invalid
from service.settings import Settings
from service.web.csrf import check_own_page
from service.web.dependencies import authenticate, check_scopes, scopes_of
from service.web.errors import wrong_body
from service.web.parameters import QueryParameters
from service.web.rates import network

LARGE_BYTES = 64 * 1024
"""Size above which bodies are parsed one at a time in a process. Several computing threads would
take turns with the event loop, which then waits for each of them."""
MAX_USER_LARGE = 4
"""Maximum number of concurrent requests of one user with larger bodies in a process."""
MAX_USER_TURNS = 8
"""Maximum number of large requests of one user that wait for their turn in a process, or have it.
"""
PUBLIC_BYTES = 4096
"""Maximum size of a body without a key."""
PUBLIC_BODY_S = 3.0
"""Time limit to receive a body without a key, unless the setting `body_s` is shorter."""
MAX_PUBLIC_BODIES = 32
"""Maximum number of bodies without a key that a process receives at once."""
MAX_ADDRESS_BODIES = 8
"""Maximum number of these from one address, or IPv6 network. Otherwise one address could keep all
others from signing in."""
MAX_USER_BODIES = 50
"""Maximum number of bodies of one user that a process receives at once, not counting uploads."""
AWAITED_SINCE = "body_awaited_since"
"""Key in a request's state: the time since which its body is being received, or None."""


class Bodies:
    """The request bodies that a process is receiving, and the large ones that it holds."""

    def __init__(self) -> None:
        self.parsing = CapacityLimiter(1)
        self._counts = Counter[tuple[str, int | str]]()

    @contextmanager
    def public(self, address: str | None) -> Iterator[None]:
        """Count a body without a key while it is received. Raise ApiError (429 or 503)."""
        rest = "requests without a key are being received, the maximum: try again"
        of_address = f"{MAX_ADDRESS_BODIES} of your address's {rest}"
        refused = _try_again(HTTPStatus.TOO_MANY_REQUESTS, "too_many_bodies", of_address)
        of_all = f"{MAX_PUBLIC_BODIES} {rest}"
        full = _try_again(HTTPStatus.SERVICE_UNAVAILABLE, "too_many_bodies", of_all)
        with (
            self._one(("address", network(address)), MAX_ADDRESS_BODIES, refused),
            self._one(("public", 0), MAX_PUBLIC_BODIES, full),
        ):
            yield

    def of_user(self, user_id: int) -> AbstractContextManager[None]:
        """Count a body of the user while it is received. Raise ApiError (429)."""
        detail = f"{MAX_USER_BODIES} requests of yours are being received, the maximum: try again"
        error = _try_again(HTTPStatus.TOO_MANY_REQUESTS, "too_many_bodies", detail)
        return self._one(("user", user_id), MAX_USER_BODIES, error)

    def large(self, user_id: int) -> AbstractContextManager[None]:
        """Count a request of the user with a large body. Raise ApiError (429)."""
        detail = (
            f"{MAX_USER_LARGE} requests of yours with more than {LARGE_BYTES} bytes are under "
            "way, the maximum: try again"
        )
        error = _try_again(HTTPStatus.TOO_MANY_REQUESTS, "too_many_large_bodies", detail)
        return self._one(("large", user_id), MAX_USER_LARGE, error)

    def turn(self, user_id: int) -> AbstractContextManager[None]:
        """Count a request of the user that waits for its turn. Raise ApiError (429)."""
        detail = f"{MAX_USER_TURNS} large requests of yours are under way, the maximum: try again"
        error = _try_again(HTTPStatus.TOO_MANY_REQUESTS, "too_many_large_requests", detail)
        return self._one(("turn", user_id), MAX_USER_TURNS, error)

    def upload(self, user_id: int, limit: int) -> AbstractContextManager[None]:
        """Count an upload of the user while it is under way. Raise ApiError (429)."""
        detail = f"{limit} uploads of yours are under way, the maximum: try again"
        error = _try_again(HTTPStatus.TOO_MANY_REQUESTS, "too_many_uploads", detail, after_s=5)
        return self._one(("upload", user_id), limit, error)

    @contextmanager
    def _one(self, key: tuple[str, int | str], limit: int, error: ApiError) -> Iterator[None]:
        if self._counts[key] >= limit:
            raise error
        self._counts[key] += 1
        try:
            yield
        finally:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]


def _try_again(status: HTTPStatus, reason: str, detail: str, after_s: int = 2) -> ApiError:
    return ApiError(status, reason, detail, headers={"Retry-After": f"{after_s}"})


class IdConvertor(StringConvertor):
    """Path parameter `{name:id}`. It ends before a colon, because `…/{name}:cancel` is another
    path."""

    regex = "[^/:]+"


register_url_convertor("id", IdConvertor())


@dataclass(frozen=True, slots=True)
class _Validated:
    """A body that a worker thread has validated."""

    value: Any


def _once(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    return value.value if isinstance(value, _Validated) else validate(value)


Model = TypeVar("Model")
_ONCE = WrapValidator(_once)
JsonBody = Annotated[Model, _ONCE]
"""The JSON body of a handler: `new: JsonBody[NewUser]`. It is parsed and validated in a worker
thread; FastAPI alone would validate it on the event loop."""


class StrictRequest(Request):
    """A request whose body has limits of size and time, and of how many are received at once."""

    route: "StrictRoute"
    held: ExitStack
    """Resources that are released at the end of the request."""
    value: Any = None
    """The handler's `JsonBody`, once it is read."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            settings: Settings = self.app.state.settings
            body_s = self.route.body_s(settings)
            with self._counted():
                setattr(self.state, AWAITED_SINCE, time.monotonic())
                try:
                    async with asyncio.timeout(body_s):
                        self._body = await self._received(self.route.max_body_bytes(settings))
                except TimeoutError:
                    detail = f"a body must arrive within {body_s:g} s"
                    raise ApiError(HTTPStatus.REQUEST_TIMEOUT, "body_stalled", detail) from None
                finally:
                    setattr(self.state, AWAITED_SINCE, None)
        return self._body

    def _counted(self) -> AbstractContextManager[None]:
        bodies: Bodies = self.app.state.bodies
        if self.route.needs_key:
            return bodies.of_user(self.state.caller.id)
        return bodies.public(self.client.host if self.client else None)

    async def _received(self, limit: int) -> bytes:
        if int(self.headers.get("Content-Length", 0)) > limit:
            raise _too_large(limit)
        bodies: Bodies = self.app.state.bodies
        received = bytearray()
        is_large = False
        async for chunk in self.stream():
            received += chunk
            if len(received) > limit:
                raise _too_large(limit)
            if len(received) > LARGE_BYTES and not is_large:
                is_large = True
                self.held.enter_context(bodies.large(self.state.caller.id))
        return bytes(received)

    async def json(self) -> Any:
        """Return the body as the handler's `JsonBody`. Raise ApiError with its problems."""
        text = await self.body()
        limiter = self.app.state.bodies.parsing if len(text) > LARGE_BYTES else None
        validated = await run_sync(self.route.parsed, text, limiter=limiter)
        self.value = validated.value
        return validated


def _too_large(limit: int) -> ApiError:
    detail = f"a body has at most {limit} bytes"
    return ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", detail)


class StrictRoute(APIRoute):
    """A route for callers with a key. Key, scopes and query parameters are checked before any of
    the body is read."""

    needs_key = True

    def max_body_bytes(self, settings: Settings) -> int:
        return settings.max_body_bytes

    def body_s(self, settings: Settings) -> float:
        return settings.body_s

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        assert self.body_field is None or _ONCE in self.body_field.field_info.metadata, (
            f"{self.path}: declare the body as JsonBody[…]"
        )
        scopes, parameters = scopes_of(self.dependant), QueryParameters(self.dependant)

        async def strict(request: Request) -> Response:
            if self.needs_key:
                check_scopes(await authenticate(request), scopes)
            else:
                check_own_page(request)
            parameters.check(request)
            request = StrictRequest(request.scope, request.receive)
            request.route = self
            with ExitStack() as request.held:
                try:
                    return await handle(request)
                except HTTPException as error:  # FastAPI wraps errors raised while reading a body
                    if isinstance(error.__cause__, ApiError):
                        raise error.__cause__ from None
                    raise

        return strict

    def parsed(self, text: bytes) -> _Validated:
        """Return a body, validated as the handler declares it. Raise ApiError."""
        try:
            value = parse_json(text)
        except SpecError as error:
            raise invalid(error) from None
        field = self.body_field
        assert field is not None
        found, errors = field.validate(value)
        if errors:
            raise wrong_body(errors, value, self.body_model)
        return _Validated(found)

    @cached_property
    def body_model(self) -> type[BaseModel]:
        """The model of the body, used for the pointers of its errors."""
        field = self.body_field
        annotation = field.field_info.annotation if field else None
        for model in (annotation, *get_args(annotation)):
            if isinstance(model, type) and issubclass(model, BaseModel):
                return model
        return BaseModel


class LargeRoute(StrictRoute):
    """A route whose body describes many things, and may have `max_batch_bytes`."""

    def max_body_bytes(self, settings: Settings) -> int:
        return settings.max_batch_bytes


class PublicRoute(StrictRoute):
    """A route for callers without a key. Its bodies are small and must arrive soon. Browsers may
    send them only from this service's own pages."""

    needs_key = False

    def max_body_bytes(self, settings: Settings) -> int:
        return PUBLIC_BYTES

    def body_s(self, settings: Settings) -> float:
        return min(PUBLIC_BODY_S, settings.body_s)
