"""Parameters of the event routes."""

import re
from enum import StrEnum
from typing import Annotated, NamedTuple

from fastapi import Depends, Header, Query, Request

from mptcore.specs import Problem
from service.records.events import EventCursor, Kind
from service.refusals import invalid
from service.web.media_types import accepted

NOW = "now"
MAX_SEQ = 2**31 - 1


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


async def asked(
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
    limit: Annotated[int, Query(ge=1, le=1000, description="About how many events.")] = 100,
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


AskedDep = Annotated[Asked, Depends(asked)]


def _place(text: str, pointer: str) -> EventCursor | None:
    if text == NOW:
        return None
    match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,19})-(\d{1,10}))?", text, re.ASCII)
    if match is None or int(match[3] or 0) > MAX_SEQ:
        detail = "the `id` of an event as an earlier answer had it, or `now`"
        raise invalid([Problem(pointer, detail)])
    return EventCursor(int(match[1]), int(match[2] or 0), int(match[3] or 0))
