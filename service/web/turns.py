"""Turns of requests that concern many points. Those of about the same size wait for each other: at
most one of each size is computed at a time in a process. Small requests wait for none."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.orm import Session
from starlette.requests import ClientDisconnect

from service.accounts.permissions import find
from service.db.engine import Database
from service.limiter import FairLimiter
from service.sweeps import store
from service.sweeps.models import Sweep
from service.web.bodies import Bodies, StrictRequest
from service.web.dependencies import check_client, client_gone, one_of, reading

SIZES = (16, 64, 512)
"""Number of points or experiments from which a request is of each size; smaller ones are small.
Other work counts as so many points as take about as long."""
POINT_BYTES = 2**14
"""Bytes of specs that count as a point."""
POINT_METRICS = 40
"""Metrics of a table that count as a point."""
WAIT_S = 15.0
"""Maximum seconds that a request waits for its turn. It holds no other place meanwhile."""


@asynccontextmanager
async def _turn(
    request: Request, points: int, writers: FairLimiter | None = None
) -> AsyncIterator[None]:
    """Hold the turn of a request with this many points, if it is not small. If it writes, hold its
    user's place as a writer, too. Raises ApiError (408, 429 or 503)."""
    size = bisect_right(SIZES, points) - 1
    if size < 0:
        yield
        return
    turn: FairLimiter = request.app.state.turns[size]
    bodies: Bodies = request.app.state.bodies
    await _receive(request)
    with bodies.turn(request.state.caller.id):
        place = turn.one if writers is None else partial(_turn_of_writer, turn, writers)
        async with one_of(request, place, WAIT_S):
            await check_client(request)
            request.state.has_turn = True
            yield


@asynccontextmanager
async def _turn_of_writer(
    turn: FairLimiter, writers: FairLimiter, user_id: int | None
) -> AsyncIterator[None]:
    """Hold a turn as the only writer of its user: otherwise the request would keep its turn while
    it waits in the database for the rows that another one locks. Neither is held while the request
    waits for the other."""
    while True:
        async with turn.one(user_id):
            if writers.has_own(user_id):
                async with writers.own(user_id):
                    yield
                return
        async with writers.own(user_id):
            pass  # the user's other writes have ended: wait for the turn again


async def _receive(request: Request) -> None:
    """Read the body. Raises ApiError (408) if the client goes meanwhile."""
    try:
        await request.body()  # is_disconnected would take its first piece
    except ClientDisconnect:
        raise client_gone() from None


async def _by_body(request: Request) -> AsyncIterator[None]:
    assert isinstance(request, StrictRequest)
    points = 0
    if request.value is not None:  # else it is not JSON, and is refused
        points = request.value.count()
        spec_bytes = len(await request.body())
        if "sweep_id" in request.path_params:
            spec_bytes += sum(await _of_sweep(request, store.base_bytes))
        points = max(points, points * spec_bytes // POINT_BYTES)
    async with _turn(request, points, request.app.state.writers):
        yield


async def _by_table(request: Request) -> AsyncIterator[None]:
    points, metrics, spec_bytes = await _of_sweep(
        request,
        store.number_of_points,
        partial(store.number_of_metrics, most=SIZES[-1] * POINT_METRICS),
        partial(store.spec_bytes, user=request.state.caller),
    )
    size = max(points, metrics // POINT_METRICS, spec_bytes // POINT_BYTES)
    async with _turn(request, size):
        yield


async def _by_retry(request: Request) -> AsyncIterator[None]:
    points, spec_bytes = await _of_sweep(request, store.number_of_retryable, store.retryable_bytes)
    size = max(points, spec_bytes // POINT_BYTES)
    async with _turn(request, size, request.app.state.writers):
        yield


async def _of_sweep(request: Request, *measures: Callable[[Session, str], int]) -> list[int]:
    """Return measures of the sweep of a request. One request of each user is measured at a time,
    and none whose client has gone. Raises ApiError (404, 408, 503)."""
    await _receive(request)
    async with one_of(request, request.app.state.measured.one, WAIT_S):
        await check_client(request)
        async with reading(request) as database:
            sweep_id = request.path_params["sweep_id"]
            return await run_in_threadpool(_measured, database, request, sweep_id, measures)


def _measured(
    database: Database,
    request: Request,
    sweep_id: str,
    measures: Sequence[Callable[[Session, str], int]],
) -> list[int]:
    with database.snapshot() as session:
        find(session, request.state.caller, Sweep, sweep_id)
        return [measure(session, sweep_id) for measure in measures]


BodyTurn = Annotated[None, Depends(_by_body, scope="function")]
"""For handlers whose body describes several experiments, perhaps of a sweep. It must come before
the handler's other dependencies, which are not held meanwhile."""
TableTurn = Annotated[None, Depends(_by_table, scope="function")]
"""The same for handlers that read all points of a sweep and their metrics."""
RetryTurn = Annotated[None, Depends(_by_retry, scope="function")]
"""The same for handlers that retry points of a sweep."""
