"""The routes of events: a page of them as JSON, or a stream that goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import BaseModel

from service.bodies import StrictRoute
from service.database import AWAY
from service.dependencies import Reader
from service.errors import ApiError
from service.experiments.events import EventOut, Place
from service.experiments.finding import ExperimentId
from service.experiments.views import as_json
from service.streams.parameters import MEDIA_TYPES, Asked, AskedDep, EventForm
from service.streams.poller import Poller, PollerDep
from service.streams.sources import PAGE, ManyExperiments, OneExperiment, Source
from service.sweeps.router import SweepId
from service.users import Caller

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1", tags=["events"], route_class=StrictRoute)

PING_S = 15.0
AWAY_S = 1.0
"""Between two tries of a database that is away."""
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {MEDIA_TYPES[EventForm.STREAM]: {"schema": {"type": "string"}}}}
}


class EventPage(BaseModel):
    """Events in their order. `last_id` goes back as `after`, also where there are none."""

    items: list[EventOut]
    last_id: str
    more: bool
    """Whether there are more by now."""
    ended: bool
    """Whether none will come any more."""


@router.get("/experiments/{experiment_id}/events", response_model=EventPage, responses=STREAMED)
async def get_events(
    experiment_id: ExperimentId, asked: AskedDep, poller: PollerDep, user: Reader
) -> Response:
    """What happened to an experiment: its states, its log, its progress, its points. With `Accept:
    text/event-stream` a stream that tells what happens on, until the experiment has ended."""
    return await _answer(poller, user, OneExperiment(user, experiment_id, asked.kinds), asked)


@router.get("/sweeps/{sweep_id}/events", response_model=EventPage, responses=STREAMED)
async def get_sweep_events(
    sweep_id: SweepId, asked: AskedDep, poller: PollerDep, user: Reader
) -> Response:
    """The same of all experiments that were made for a sweep, with notices in place of points. A
    stream ends once all have."""
    return await _answer(poller, user, ManyExperiments(user, sweep_id, asked.kinds), asked)


@router.get("/events", response_model=EventPage, responses=STREAMED)
async def get_own_events(asked: AskedDep, poller: PollerDep, user: Reader) -> Response:
    """The same of all experiments that are the caller's own. A stream goes on until one leaves."""
    return await _answer(poller, user, ManyExperiments(user, None, asked.kinds), asked)


async def _answer(poller: Poller, user: Caller, source: Source, asked: Asked) -> Response:
    if asked.form == EventForm.STREAM:
        return await _stream(poller, user, source, asked.after)
    until = 0
    if source.needs_horizon:
        until = await poller.known_horizon(source.subject, user)
    ask = partial(source.read, after=asked.after, until=until, limit=asked.limit)
    reading = await poller.read(ask)
    return as_json(
        EventPage.model_construct(
            items=reading.events,
            last_id=str(reading.place),
            more=not reading.whole,
            ended=reading.over,
        )
    )


async def _stream(poller: Poller, user: Caller, source: Source, after: Place | None) -> Response:
    # What is not there is said before the stream begins.
    await poller.read(source.check)
    if not poller.has_room(user):
        detail = "you have as many event streams open as you may: close one, or follow a sweep"
        headers = {"Retry-After": "10"}
        raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too_many_streams", detail, headers=headers)
    return EventSourceResponse(
        followed(poller, user, source, after), headers={"X-Accel-Buffering": "no"}
    )


async def followed(
    poller: Poller, user: Caller, source: Source, place: Place | None
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
                reading = await poller.read(ask)
            except ApiError:
                yield _end("refused", place)
                return
            except AWAY as error:
                log.warning("the database is away: %s", error)
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


def _end(reason: str, place: Place | None) -> bytes:
    """The last event, after which the server closes: do not open the stream again."""
    told = None if place is None else str(place)
    return format_sse_event(data_str=f'{{"reason":"{reason}"}}', event="end", id=told)
