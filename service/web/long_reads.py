"""Requests that may read all rows, and answers that may be large. A first try is bounded and needs
a reader's place only. If that is not enough, the request waits for one of a few places and is done
again: short requests do not wait for long ones."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from starlette.datastructures import QueryParams

from mptcore.specs import Problem
from service.db.engine import Database, limit_statements
from service.db.errors import is_over_time
from service.limiter import FairLimiter
from service.refusals import TooLarge, invalid
from service.web.dependencies import check_client, counted, one_of, reading

FIRST_TRY_S = 0.3
"""Maximum seconds of a statement in the first try of a search."""
SEARCH_S = 5.0
"""Maximum seconds of a statement of a search. A filter may read all specs of a user."""
SMALL_METRICS = 5000
SMALL_SPECS_BYTES = 2**20
SMALL_POINTS = 200_000
SMALL_LINES = 1000
SMALL_BATCH = 100
SMALL_TEXTS = 500_000
"""Maximum of a first try: metrics, bytes of specs, stored points of curves, lines of a log,
experiments whose curves are read, and characters of notes, tags and ids of predecessors."""
SEARCH_PARAMETERS = frozenset({"filter", "q", "metrics", "fields", "summary"})

T = TypeVar("T", covariant=True)
Run = Callable[[Database, Callable[[Session], Any]], Any]
"""Function that calls another one with a session of the database, and returns its answer."""


class Read(Protocol[T]):
    """Reads an answer. In the first try it raises TooLarge if the answer would be large."""

    def __call__(self, session: Session, *, is_first: bool) -> T: ...


def is_search(parameters: QueryParams) -> bool:
    """Return whether a list with these query parameters may take long."""
    orders = parameters.getlist("order_by")
    by_metric = any(one.strip().startswith("metrics") for one in orders)
    return by_metric or not SEARCH_PARAMETERS.isdisjoint(parameters)


async def searched(request: Request, read: Read[T]) -> T:
    """Return what a search finds. One search of a user runs at a time, and slow ones have a third
    of the readers' places. Raises ApiError if it takes too long."""
    searches: FairLimiter = request.app.state.searches
    async with AsyncExitStack() as held:
        held.enter_context(counted(request))
        await held.enter_async_context(one_of(request, searches.own))
        try:
            first = partial(_in_session, seconds=FIRST_TRY_S)
            return await _read(request, first, partial(read, is_first=True))
        except TooLarge:
            place = large_answer(request)  # it found the rows in time, so it waits for no slow one
        except OperationalError as error:
            if not is_over_time(error):
                raise
            place = one_of(request, lambda _: searches.shared())
        await held.enter_async_context(place)
        return await _read(request, limited, partial(read, is_first=False))


async def answered(request: Request, read: Read[T], run: Run | None = None) -> T:
    """Return an answer that is usually small. A process makes two large ones at a time, each of
    another user, because threads that make large ones slow down all others. With `limited` as `run`
    it raises ApiError if a statement takes too long."""
    run = run or _in_session
    with counted(request):
        try:
            return await _read(request, run, partial(read, is_first=True))
        except TooLarge:
            pass
        async with large_answer(request):
            return await _read(request, run, partial(read, is_first=False))


@asynccontextmanager
async def large_answer(request: Request) -> AsyncIterator[None]:
    """Hold a place of large answers while the block runs. Raises ApiError if none becomes free, or
    if the client has gone meanwhile."""
    async with one_of(request, request.app.state.large_answers.one):
        await check_client(request)  # also of a POST that reads
        yield


async def _read(request: Request, run: Run, read: Callable[[Session], T]) -> T:
    async with reading(request) as database:
        answer: T = await run_in_threadpool(run, database, read)
        return answer


def limited(database: Database, read: Callable[[Session], T]) -> T:
    """Return what a function reads. Raises ApiError (422) if a statement takes too long."""
    try:
        return _in_session(database, read, SEARCH_S)
    except OperationalError as error:
        if not is_over_time(error):
            raise
        detail = (
            f"the search took longer than {SEARCH_S:g} s: add filters such as status, family or "
            "created_after, or compare fewer fields"
        )
        raise invalid([Problem("/query", detail)]) from None


def _in_session(
    database: Database, read: Callable[[Session], T], seconds: float | None = None
) -> T:
    with database.snapshot() as session:
        if seconds is not None:
            limit_statements(session, seconds)
        return read(session)
