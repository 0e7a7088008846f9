"""`Prefer: wait=N` (RFC 7240): wait at most N seconds for the requested state."""

import re
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Header, Response
from sqlalchemy.orm import Session

from service.accounts.users import Caller
from service.refusals import ApiError
from service.streams.changes import Subject
from service.streams.poller import Poller
from service.web.dependencies import SettingsDep

Read = Callable[[Session], tuple[Response, bool]]
"""Return an answer, and whether it is the awaited one."""


async def _seconds(
    settings: SettingsDep,
    prefer: Annotated[
        list[str] | None,
        Header(description="`wait=N`: answer after the end, or after N seconds."),
    ] = None,
) -> float:
    """Return how long the caller wants to wait. An unknown preference is ignored."""
    for preference in ",".join(prefer or ()).split(","):
        match = re.fullmatch(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*(;.*)?', preference, re.ASCII | re.I)
        if match:
            return min(float(match[1]), settings.max_wait_s)
    return 0.0


WaitDep = Annotated[float, Depends(_seconds)]


async def awaited(
    poller: Poller, subject: Subject, user: Caller, seconds: float, read: Read
) -> Response:
    """Return the answer as soon as it is the awaited one, or the last answer at the end. A user
    with the maximum number of streams does not wait."""
    if not poller.has_room(user):
        return (await poller.read(user, read))[0]
    ends_at = time.monotonic() + seconds
    with poller.listening(subject, user) as listener:
        while True:
            answer, due = await poller.read(user, read)
            if listener.refused:
                detail = "this API key does not serve any more"
                raise ApiError(HTTPStatus.UNAUTHORIZED, "unauthorized", detail)
            left = ends_at - time.monotonic()
            if due or left <= 0 or listener.cut:
                break
            await listener.wait(left)
    answer.headers["Preference-Applied"] = f"wait={seconds:g}"
    return answer
