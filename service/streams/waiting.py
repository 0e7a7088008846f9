"""`Prefer: wait=N` (RFC 7240): an answer that waits for what is asked for, N seconds at most."""

import re
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Header, Response
from sqlalchemy.orm import Session

from service.dependencies import SettingsDep
from service.errors import ApiError
from service.streams.changes import Subject
from service.streams.poller import Poller
from service.users import Caller

Read = Callable[[Session], tuple[Response, bool]]
"""Gives an answer, and whether it is what one waits for."""


async def _seconds(
    settings: SettingsDep,
    prefer: Annotated[
        list[str] | None,
        Header(description="`wait=N`: answer when it has ended, after N seconds at the latest"),
    ] = None,
) -> float:
    """How long the caller would wait; a preference that is not understood is passed over."""
    for preference in ",".join(prefer or ()).split(","):
        match = re.fullmatch(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*(;.*)?', preference, re.ASCII | re.I)
        if match:
            return min(float(match[1]), settings.max_wait_s)
    return 0.0


WaitDep = Annotated[float, Depends(_seconds)]


async def awaited(
    poller: Poller, subject: Subject, user: Caller, seconds: float, read: Read
) -> Response:
    """The answer as soon as it is what one waits for, or as it is in the end. A user who has as
    many streams open as it may does not wait."""
    if not poller.has_room(user):
        return (await poller.read(read))[0]
    ends_at = time.monotonic() + seconds
    with poller.listening(subject, user) as listener:
        while True:
            answer, due = await poller.read(read)
            if listener.refused:
                detail = "this API key does not serve any more"
                raise ApiError(HTTPStatus.UNAUTHORIZED, "unauthorized", detail)
            left = ends_at - time.monotonic()
            if due or left <= 0 or listener.cut:
                break
            await listener.wait(left)
    answer.headers["Preference-Applied"] = f"wait={seconds:g}"
    return answer
