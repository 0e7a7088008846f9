"""Routes of events: a page as JSON, or a stream."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event

from mptcore.specs import Problem
from service.accounts.users import Caller
from service.db.errors import TRANSIENT_DB_ERRORS
from service.events.poller import Poller
from service.events.sources import PAGE, ManyExperiments, OneExperiment, Source
from service.records.events import EventCursor, EventOut, Kind
from service.refusals import ApiError, invalid
from service.schemas import ResponseModel
from service.sweeps.routes import SweepId
from service.web.bodies import StrictRoute
from service.web.dependencies import PollerDep, Reader, check_client, counted, one_of
from service.web.media_types import accepted, as_json
from service.web.pagination import MAX_ID
from service.web.parameters import ExperimentId

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1", tags=["events"], route_class=StrictRoute)

PING_S = 15.0
AWAY_S = 1.0
"""Pause between retries while the database is unavailable."""
NOW = "now"


class EventForm(StrEnum):
    """A page of events, or a stream."""

    JSON = "json"
    STREAM = "stream"


MEDIA_TYPES = {EventForm.JSON: "application/json", EventForm.STREAM: "text/event-stream"}


class Asked(NamedTuple):
    """The requested events. `after` is None for events from now on."""

    form: EventForm
    after: EventCursor | None
    kinds: list[Kind]
    limit: int


async def wanted_events(
    request: Request,
    *,
    after: Annotated[
        str | None,
        Query(max_length=64, description="`id` of an event, to get later ones; `now`: new ones."),
    ] = None,
    kind: Annotated[
        list[Kind],
        Query(default_factory=list, max_length=4, description="Only events of these kinds."),
    ],
    limit: Annotated[int, Query(ge=1, le=1000, description="Approximate number of events.")] = 100,
    last_event_id: Annotated[
        str | None, Header(max_length=64, description="Replaces `after`.")
    ] = None,
) -> Asked:
    """Return the requested events. Raises ApiError."""
    if last_event_id:
        place = _place(last_event_id, "/header/last-event-id")
    else:
        place = _place(after, "/query/after") if after else EventCursor()
    return Asked(accepted(request, MEDIA_TYPES), place, kind or [*Kind], limit)


AskedDep = Annotated[Asked, Depends(wanted_events)]


def _place(text: str, pointer: str) -> EventCursor | None:
    if text == NOW:
        return None
    match = re.fullmatch(r"(\d{1,10})(?:-(\d{1,18})-(\d{1,10}))?", text, re.ASCII)
    event, done, seq = (0, 0, 0) if match is None else (int(one or 0) for one in match.groups())
    if match is None or max(event, seq) > MAX_ID:
        detail = "the `id` of an event from an earlier answer, or `now`"
        raise invalid([Problem(pointer, detail)])
    return EventCursor(event, done, seq)


STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {MEDIA_TYPES[EventForm.STREAM]: {"schema": {"type": "string"}}}}
}


class EventPage(ResponseModel):
    """A page of events."""

    items: list[EventOut]
    """Events, oldest first."""
    last_id: str
    """Pass it as `after` to get later events. It is given even if there are no events."""
    more: bool
    """True if more events are available already."""
    ended: bool
    """True if no more events will come."""


@router.get("/experiments/{experiment_id}/events", response_model=EventPage, responses=STREAMED)
async def get_events(
    request: Request,
    experiment_id: ExperimentId,
    asked: AskedDep,
    poller: PollerDep,
    user: Reader,
) -> Response:
    """Return the events of an experiment: status, log, progress and points. With `Accept:
    text/event-stream` a stream continues until the experiment has ended."""
    return await _answer(
        request, poller, user, OneExperiment(user, experiment_id, asked.kinds), asked
    )


@router.get("/sweeps/{sweep_id}/events", response_model=EventPage, responses=STREAMED)
async def get_sweep_events(
    request: Request, sweep_id: SweepId, asked: AskedDep, poller: PollerDep, user: Reader
) -> Response:
    """Return the events of all experiments of a sweep, with notices instead of points. A stream
    ends when all have ended."""
    return await _answer(request, poller, user, ManyExperiments(user, sweep_id, asked.kinds), asked)


@router.get("/events", response_model=EventPage, responses=STREAMED)
async def get_own_events(
    request: Request, asked: AskedDep, poller: PollerDep, user: Reader
) -> Response:
    """Return the events of all the caller's own experiments. A stream continues until the client
    disconnects."""
    return await _answer(request, poller, user, ManyExperiments(user, None, asked.kinds), asked)


async def _answer(
    request: Request, poller: Poller, user: Caller, source: Source, asked: Asked
) -> Response:
    if asked.form == EventForm.STREAM:
        # Missing objects are refused before the stream begins.
        await poller.read(user, source.check, partial(check_client, request))
        return _stream(poller, user, source, asked.after)
    until = 0
    with counted(request):
        if source.needs_horizon:
            until = await poller.known_horizon(source.subject, user)
        ask = partial(source.read, after=asked.after, until=until, limit=asked.limit)
        async with one_of(request, poller.readers.one):
            reading = await poller.ask(ask)
    return as_json(
        EventPage.model_construct(
            items=reading.events,
            last_id=str(reading.place),
            more=not reading.whole,
            ended=reading.over,
        )
    )


def _stream(poller: Poller, user: Caller, source: Source, after: EventCursor | None) -> Response:
    if not poller.has_room(user):
        detail = "you have the maximum number of open event streams: close one, or follow a sweep"
        headers = {"Retry-After": "10"}
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too_many_streams", detail, headers=headers)
    return EventSourceResponse(
        followed(poller, user, source, after), headers={"X-Accel-Buffering": "no"}
    )


async def followed(
    poller: Poller, user: Caller, source: Source, place: EventCursor | None
) -> AsyncIterator[bytes]:
    """Yield events as server-sent events, until there are no more or the server stops."""
    with poller.listening(source.subject, user) as listener:
        while source.needs_horizon and poller.horizon is None and not listener.cut:
            if not await listener.wait(PING_S):
                yield KEEPALIVE_COMMENT
        while not listener.cut:
            if listener.refused:
                yield _end("refused", place)
                return
            try:
                ask = partial(source.read, after=place, until=poller.horizon or 0, limit=PAGE)
                reading = await poller.read(user, ask)
            except ApiError:
                yield _end("refused", place)
                return
            except TRANSIENT_DB_ERRORS as error:
                log.warning("the database is unreachable: %s", error)
                yield KEEPALIVE_COMMENT
                await asyncio.sleep(AWAY_S)
                continue
            place = reading.place
            for event in reading.events:
                yield _framed(event)
            if reading.over:
                yield _end("ended", place)
                return
            while reading.whole and not await listener.wait(PING_S):
                yield KEEPALIVE_COMMENT


def _framed(event: EventOut) -> bytes:
    return format_sse_event(data_str=event.model_dump_json(), event=event.kind, id=event.id)


def _end(reason: str, place: EventCursor | None) -> bytes:
    """Return the last event of a stream, which tells the client not to reconnect."""
    told = None if place is None else str(place)
    return format_sse_event(data_str=f'{{"reason":"{reason}"}}', event="end", id=told)
