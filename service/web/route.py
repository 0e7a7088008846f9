"""Routes behind the gate: the caller, the scopes and the query parameters are checked before any of
the body is read. A strict JSON parser reads bodies, and a worker thread validates them. Also ids in
paths."""

import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeVar, get_args

from anyio.to_thread import run_sync
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidatorFunctionWrapHandler, WrapValidator
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from mptcore.specs import SpecError, parse_json
from service import vocabulary
from service.refusals import ApiError, invalid
from service.schemas import MAX_BODY_BYTES
from service.web.dependencies import check_scopes, is_heavy, scopes_of
from service.web.errors import wrong_body
from service.web.gate import Credential, Gate, received
from service.web.parameters import QueryParameters
from service.web.sign_in_cookie import check_own_page

PIECE_BYTES = 2**20
VALID_S = 1.0
"""Seconds after which the key of a request that has waited is looked up again."""


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


class _JsonRequest(Request):
    """A request whose body is parsed by its route."""

    parse: Callable[[bytes], _Validated]

    async def json(self) -> Any:
        """Return the body as the handler's `JsonBody`. Raises ApiError with its problems."""
        return await run_sync(self.parse, await self.body())


class StrictRoute(APIRoute):
    """A route for callers with a key."""

    needs_key = True
    max_body_bytes = MAX_BODY_BYTES
    body_s = 30.0
    """Maximum seconds in which a whole body must arrive."""
    reads_stream = False
    """True if the handler receives the body by itself. It then holds none of the places of the
    process, which are for requests that have arrived."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through the gate, and handle it."""
        if scope["method"] not in (self.methods or ()):
            return await super().handle(scope, receive, send)  # 405
        request = Request(scope, receive)
        gate: Gate = request.app.state.gate
        credential = Credential.of(request)
        key = gate.count(request, credential)
        if self.needs_key:
            async with gate.arriving(key):
                user = request.state.caller = await gate.caller(request, credential)
            check_scopes(user, self._scopes)
            key = user.id
        else:
            check_own_page(request)
        looked_up_at = time.monotonic()
        self._parameters.check(request)
        async with gate.arriving(key) as leave:
            request.state.leave = leave
            if self.reads_stream:
                return await super().handle(scope, receive, send)
            if has_body := request.method != "GET":
                body = await received(request, self.max_body_bytes, self.body_s)
                receive = _received_before(body, receive)
            is_writing = has_body and self._scopes != {vocabulary.Scope.READ}
            async with gate.handled(key, is_writing, self._is_heavy) as end_turn:
                request.state.end_turn = end_turn
                if self.needs_key and time.monotonic() - looked_up_at > VALID_S:
                    request.state.caller = await gate.caller(request, credential)

                async def sending(message: Message) -> None:
                    end_turn()  # the answer is computed: sending it may take long
                    for piece in _pieces(message):
                        await send(piece)

                await super().handle(scope, receive, sending)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        assert self.body_field is None or _ONCE in self.body_field.field_info.metadata, (
            f"{self.path}: declare the body as JsonBody[…]"
        )

        async def strict(request: Request) -> Response:
            request = _JsonRequest(request.scope, request.receive)
            request.parse = self.parsed
            try:
                return await handle(request)
            except HTTPException as error:  # FastAPI wraps errors raised while reading a body
                if isinstance(error.__cause__, ApiError):
                    raise error.__cause__ from None
                raise

        return strict

    @cached_property
    def _scopes(self) -> frozenset[vocabulary.Scope]:
        return scopes_of(self.dependant)

    @cached_property
    def _is_heavy(self) -> bool:
        return is_heavy(self.dependant)

    @cached_property
    def _parameters(self) -> QueryParameters:
        return QueryParameters(self.dependant)

    def parsed(self, text: bytes) -> _Validated:
        """Return a body, validated as the handler declares it. Raises ApiError."""
        try:
            value = parse_json(text)
        except SpecError as error:
            raise invalid(error) from None
        field = self.body_field
        assert field is not None
        validated, errors = field.validate(value)
        if errors:
            raise wrong_body(errors, value, self.body_model)
        return _Validated(validated)

    @cached_property
    def body_model(self) -> type[BaseModel]:
        """The model of the body, used for the pointers of its errors."""
        field = self.body_field
        annotation = field.field_info.annotation if field else None
        for model in (annotation, *get_args(annotation)):
            if isinstance(model, type) and issubclass(model, BaseModel):
                return model
        return BaseModel


def _received_before(body: bytes, receive: Receive) -> Receive:
    """Return a function that gives a body which has been received, and then what follows it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


def _pieces(message: Message) -> Iterator[Message]:
    """Yield a message with a large body in pieces: the server waits before the next one until the
    client has read most of the last. It would take a whole body at once, and the request would end,
    however many answers its user leaves unread."""
    body = message.get("body", b"")
    for start in range(0, max(1, len(body)), PIECE_BYTES):
        end = start + PIECE_BYTES
        more = message.get("more_body", False) or end < len(body)
        yield {**message, "body": body[start:end], "more_body": more} if body else message


class LargeRoute(StrictRoute):
    """A route whose body describes many things."""

    max_body_bytes = 4 * 2**20


class UploadRoute(StrictRoute):
    """A route whose body is a file."""

    reads_stream = True


class PublicRoute(StrictRoute):
    """A route for callers without a key. Its bodies are small and must arrive soon. Browsers may
    send them only from this service's own pages."""

    needs_key = False
    max_body_bytes = 4096
    body_s = 3.0


class ProbeRoute(PublicRoute):
    """A route for probes of the process. They are not counted and wait for no place: a load
    balancer's are answered whatever other requests do."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._parameters.check(Request(scope))
        await APIRoute.handle(self, scope, receive, send)
