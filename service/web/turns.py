"""Turns of large requests. One at a time is computed in a process, so that small requests do not
share the interpreter with several."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from service.accounts.permission import find
from service.accounts.users import Caller
from service.refusals import unavailable
from service.sweeps import store
from service.tables.engine import Database
from service.tables.sweeps import Sweep
from service.web.bodies import Bodies, StrictRequest
from service.web.dependencies import one_of, reading

LARGE = 256
"""Number of points or experiments from which a request is large."""
LARGE_BYTES = 4 * 2**20
"""Bytes of the body times that number from which a request is large."""
WAIT_S = 15.0
"""Maximum seconds that a request waits for its turn. It holds no other place meanwhile."""


@asynccontextmanager
async def _turn(request: Request) -> AsyncIterator[None]:
    """Hold the turn of large requests. One request of each user waits for those of others, so that
    nobody has several places in the queue. Raises ApiError (429 or 503)."""
    await request.body()  # is_disconnected would take its first piece
    bodies: Bodies = request.app.state.bodies
    with bodies.turn(request.state.caller.id):
        async with one_of(request.app.state.large, request, WAIT_S):
            if await request.is_disconnected():
                raise unavailable("client_gone", "the client did not wait for its turn")
            request.state.has_turn = True
            yield


async def _by_body(request: Request) -> AsyncIterator[None]:
    assert isinstance(request, StrictRequest)
    if request.value is None:  # it is not JSON, and is refused
        yield
        return
    count = request.value.count()
    if count < LARGE and count * len(await request.body()) < LARGE_BYTES:
        yield
        return
    async with _turn(request):
        yield


async def _by_points(request: Request) -> AsyncIterator[None]:
    async with reading(request) as database:
        sweep_id = request.path_params["sweep_id"]
        count = await run_in_threadpool(_points, database, request.state.caller, sweep_id)
    if count < LARGE:
        yield
        return
    async with _turn(request):
        yield


def _points(database: Database, caller: Caller, sweep_id: str) -> int:
    """Return the number of points of a sweep. Raises ApiError (404)."""
    with database.snapshot() as session:
        find(session, caller, Sweep, sweep_id)
        return store.number_of_points(session, sweep_id)


BodyTurn = Annotated[None, Depends(_by_body, scope="function")]
"""For handlers whose body describes several experiments. A large one waits for its turn. It must
come before the handler's other dependencies, which are not held meanwhile."""
SweepTurn = Annotated[None, Depends(_by_points, scope="function")]
"""The same for handlers that read or retry all points of a sweep."""
