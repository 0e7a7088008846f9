"""Reading request bodies, limited in size and time, and parsed by the one strict JSON parser; and
the ids of paths."""

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, get_args

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.convertors import StringConvertor, register_url_convertor

from mptcore.specs import SpecError, parse_json
from service.errors import ApiError, invalid
from service.settings import Settings


class IdConvertor(StringConvertor):
    """`{name:id}` in a path: what follows a colon is a verb, `…/{name}:cancel`, of another path."""

    regex = "[^/:]+"


register_url_convertor("id", IdConvertor())


class StrictRequest(Request):
    """A request whose body keeps to the settings `max_body_bytes` and `body_s`."""

    def _limit(self, settings: Settings) -> int:
        return settings.max_body_bytes

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            settings: Settings = self.app.state.settings
            try:
                async with asyncio.timeout(settings.body_s):
                    self._body = await self._received(self._limit(settings))
            except TimeoutError:
                detail = f"a body comes within {settings.body_s:g} s"
                raise ApiError(HTTPStatus.REQUEST_TIMEOUT, "body_stalled", detail) from None
        return self._body

    async def _received(self, limit: int) -> bytes:
        received = bytearray()
        async for chunk in self.stream():
            received += chunk
            if len(received) > limit:
                detail = f"a body is at most {limit} bytes"
                status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                raise ApiError(status, "body_too_large", detail)
        return bytes(received)

    async def json(self) -> Any:
        try:
            return parse_json(await self.body())
        except SpecError as error:
            raise invalid(error.problems) from None


class LargeRequest(StrictRequest):
    """One that tells of many things, and may be as large as `max_batch_bytes`."""

    def _limit(self, settings: Settings) -> int:
        return settings.max_batch_bytes


class StrictRoute(APIRoute):
    """A route whose JSON body is read by StrictRequest."""

    request_class: type[StrictRequest] = StrictRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(self.request_class(request.scope, request.receive))

        return strict

    @property
    def body_model(self) -> type[BaseModel]:
        """The model of the body, for the pointers of its errors."""
        field = self.body_field
        annotation = field.field_info.annotation if field else None
        for model in (annotation, *get_args(annotation)):
            if isinstance(model, type) and issubclass(model, BaseModel):
                return model
        return BaseModel


class LargeRoute(StrictRoute):
    """The same by LargeRequest."""

    request_class = LargeRequest
