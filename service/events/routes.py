"""Routes of events: a page as JSON, or a stream."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from service.accounts.users import Caller
from service.db.errors import TRANSIENT_DB_ERRORS
from service.events.poller import MAX_STREAMS, MAX_USER_STREAMS, Poller
from service.events.reading import (
    EventCursor,
    EventOut,
    Kind,
    OneExperiment,
    Reading,
    SeveralExperiments,
    Source,
)
from service.refusals import ApiError, invalid
from service.schemas import ResponseModel
from service.sweeps.routes import SweepId
from service.web.dependencies import PollerDep, Reader, check_client, release_places
from service.web.media_types import accepted, as_json
from service.web.pagination import MAX_ID
from service.web.parameters import ExperimentId
from service.web.route import StrictRoute

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


class Requested(NamedTuple):
    """The requested form and kinds of events."""

    form: EventForm
    kinds: list[Kind]


async def requested(
    request: Request,
    kind: Annotated[
        list[Kind],
        Query(default_factory=list, max_length=4, description="Only events of these kinds."),
    ],
) -> Requested:
    """Return the requested form and kinds of events. Raises ApiError."""
    return Requested(accepted(request, MEDIA_TYPES), kind or [*Kind])


RequestedDep = Annotated[Requested, Depends(requested)]


async def requested_position(
    after: Annotated[
        str | None,
        Query(max_length=64, description="`id` of an event, to get later ones; `now`: new ones."),
    ] = None,
    last_event_id: Annotated[
        str | None, Header(max_length=64, description="Replaces `after`.")
    ] = None,
) -> EventCursor | None:
    """Return the position after which events are requested; None means from now on. Raises
    ApiError."""
    if last_event_id:
        return _cursor(last_event_id, "/header/last-event-id")
    return _cursor(after, "/query/after") if after else EventCursor()


def _cursor(text: str, pointer: str) -> EventCursor | None:
    if text == NOW:
        return None
    match = re.fullmatch(r"(\d{1,10})(?:-(\d{1,18})-(\d{1,10}))?", text, re.ASCII)
    event, done, seq = (0, 0, 0) if match is None else (int(part or 0) for part in match.groups())
    if match is None or max(event, seq) > MAX_ID:
        detail = "the `id` of an event from an earlier answer, or `now`"
        raise invalid([Problem(pointer, detail)])
    return EventCursor(event, done, seq)


STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {MEDIA_TYPES[EventForm.STREAM]: {"schema": {"type": "string"}}}}
}


class EventPage(ResponseModel):
    """A page of events, or the present state of several experiments in the form of events."""

    items: list[EventOut]
    """Events, oldest first. Of several experiments: their status, then progress and points of
    running ones."""
    last_id: str | None
    """Pass it as `after` to get later events. It is given even if there are no events; null for
    several experiments."""
    more: bool
    """True if more events are available already."""
    ended: bool
    """True if no more events will come."""


@router.get("/experiments/{experiment_id}/events", response_model=EventPage, responses=STREAMED)
async def get_events(
    request: Request,
    experiment_id: ExperimentId,
    after: Annotated[EventCursor | None, Depends(requested_position)],
    asked: RequestedDep,
    poller: PollerDep,
    user: Reader,
    limit: Annotated[int, Query(ge=1, le=1000, description="Approximate number of events.")] = 100,
) -> Response:
    """Return the events of an experiment: status, log, progress and points. With `Accept:
    text/event-stream` a stream continues until the experiment has ended."""
    source = OneExperiment(user, experiment_id, asked.kinds, after)
    if asked.form == EventForm.STREAM:
        return await _stream(request, poller, user, source)
    return await _page(poller, partial(source.page, limit=limit))


@router.get("/sweeps/{sweep_id}/events", response_model=EventPage, responses=STREAMED)
async def get_sweep_events(
    request: Request, sweep_id: SweepId, asked: RequestedDep, poller: PollerDep, user: Reader
) -> Response:
    """Return the status of all experiments of a sweep, with notices about running ones. With
    `Accept: text/event-stream` a stream begins with these, continues with all events, and ends when
    all experiments have ended."""
    source = SeveralExperiments(user, sweep_id, asked.kinds)
    if asked.form == EventForm.STREAM:
        return await _stream(request, poller, user, source)
    return await _page(poller, source.state)


@router.get("/events", response_model=EventPage, responses=STREAMED)
async def get_own_events(
    request: Request, asked: RequestedDep, poller: PollerDep, user: Reader
) -> Response:
    """Return the status of the caller's experiments that run or have ended within the last hour,
    with notices about running ones. With `Accept: text/event-stream` a stream begins with these,
    and continues with all events of the caller's experiments until the client disconnects."""
    source = SeveralExperiments(user, None, asked.kinds)
    if asked.form == EventForm.STREAM:
        return await _stream(request, poller, user, source)
    return await _page(poller, source.state)


async def _page(poller: Poller, read: Callable[[Session], Reading]) -> Response:
    reading = await poller.ask(read)
    return as_json(
        EventPage.model_construct(
            items=reading.events,
            last_id=None if reading.cursor is None else str(reading.cursor),
            more=reading.more,
            ended=reading.ended,
        )
    )


async def _stream(request: Request, poller: Poller, user: Caller, source: Source) -> Response:
    release_places(request)
    # Missing objects are refused before the stream begins.
    await poller.read(user, source.check, partial(check_client, request))
    if not poller.has_room(user):
        detail = (
            f"at most {MAX_USER_STREAMS} event streams of a user are open at a time, and "
            f"{MAX_STREAMS} in all: close one, or follow a sweep"
        )
        headers = {"Retry-After": "10"}
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too_many_streams", detail, headers=headers)
    return EventSourceResponse(followed(poller, user, source), headers={"X-Accel-Buffering": "no"})


async def followed(poller: Poller, user: Caller, source: Source) -> AsyncIterator[bytes]:
    """Yield events as server-sent events, until there are no more or the server stops."""
    with poller.listening(source.subject, user) as listener:
        while source.is_several and not listener.cut and not await listener.wait(PING_S):
            yield KEEPALIVE_COMMENT  # changes of several are reported after its first look
        while not listener.cut:
            if listener.refused:
                yield _end("refused", source)
                return
            try:
                read = partial(_framed, source.next(listener, poller.floor))
                frames, reading = await poller.read(user, read)
            except ApiError:
                yield _end("refused", source)
                return
            except TRANSIENT_DB_ERRORS as error:
                log.warning("the database is unreachable: %s", error)
                listener.needs_state = source.is_several
                yield KEEPALIVE_COMMENT
                await asyncio.sleep(AWAY_S)
                continue
            source.cursor = reading.cursor
            if frames:
                yield frames
            is_behind = reading.more or bool(listener.pending) or listener.needs_state
            if reading.ended or (listener.has_ended and not is_behind):
                yield _end("ended", source)
                return
            while not is_behind and not await listener.wait(PING_S):
                yield KEEPALIVE_COMMENT


def _framed(read: Callable[[Session], Reading], session: Session) -> tuple[bytes, Reading]:
    """Read events, and write them as server-sent events in the same thread: thousands of them would
    block the event loop."""
    reading = read(session)
    frames = (
        format_sse_event(data_str=event.model_dump_json(), event=event.kind, id=event.id)
        for event in reading.events
    )
    return b"".join(frames), reading


def _end(reason: str, source: Source) -> bytes:
    """Return the last event of a stream, which tells the client not to reconnect."""
    last_id = None if source.cursor is None else str(source.cursor)
    return format_sse_event(data_str=f'{{"reason":"{reason}"}}', event="end", id=last_id)
