"""Searches: requests that may read all rows, or very many metrics."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from starlette.datastructures import QueryParams

from mptcore.specs import Problem
from service.limiter import FairLimiter
from service.records.results import TooManyMetrics
from service.refusals import invalid
from service.tables.db_errors import is_over_time
from service.tables.engine import Database, limit_statements
from service.web.dependencies import one_of, reading

FIRST_TRY_S = 0.3
"""Maximum seconds of a statement in the first try of a search."""
SEARCH_S = 5.0
"""Maximum seconds of a statement of a search. A filter may read all specs of a user."""
SEARCH_PARAMETERS = frozenset({"filter", "q", "metrics"})

T = TypeVar("T", covariant=True)


class Find(Protocol[T]):
    """Reads the answer of a search. In the first try it may raise TooManyMetrics."""

    def __call__(self, session: Session, *, is_first: bool) -> T: ...


def is_search(parameters: QueryParams) -> bool:
    """Return whether a list with these query parameters is a search."""
    orders = parameters.getlist("order_by")
    by_metric = any(one.strip().startswith("metrics") for one in orders)
    return by_metric or not SEARCH_PARAMETERS.isdisjoint(parameters)


async def searched(request: Request, find: Find[T]) -> T:
    """Return what a search finds. One search of a user runs at a time. A first, short try needs a
    reader's place only. A search that takes longer waits for a third of these places, which all
    such searches share: short ones do not wait for them. Raises ApiError if it takes too long."""
    searches: FairLimiter = request.app.state.searches
    async with one_of(request, searches.own):
        try:
            async with reading(request) as database:
                first = partial(find, is_first=True)
                return await run_in_threadpool(_limited, database, first, FIRST_TRY_S)
        except TooManyMetrics:
            pass
        except OperationalError as error:
            if not is_over_time(error):
                raise
        async with one_of(request, lambda _: searches.shared()), reading(request) as database:
            return await run_in_threadpool(limited, database, partial(find, is_first=False))


def limited(database: Database, find: Callable[[Session], T]) -> T:
    """Return what a function reads. Raises ApiError (422) if a statement takes too long."""
    try:
        return _limited(database, find, SEARCH_S)
    except OperationalError as error:
        if not is_over_time(error):
            raise
        detail = (
            f"the search took longer than {SEARCH_S:g} s: add filters such as status, family or "
            "created_after, or compare fewer fields"
        )
        raise invalid([Problem("/query", detail)]) from None


def _limited(database: Database, find: Callable[[Session], T], seconds: float) -> T:
    with database.snapshot() as session:
        limit_statements(session, seconds)
        return find(session)
