"""Two workers in one memory limit of the kernel, and runs that exceed it together. Needs the right
to make control groups, so `make chaos` runs it, not `make test`."""

import re
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import update

from mptlab import Client
from service.accounts.models import User
from service.db.engine import Database
from service.db.notices import notify
from service.operations.prepare import prepare
from service.settings import Settings
from service.vocabulary import TERMINAL
from tests.support.memory_limits import LimitUnavailable, MemoryLimit
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab, wait_until
from tests.support.stored import change, status_events

pytestmark = [pytest.mark.mounts, pytest.mark.timeout(1800)]

LIMIT = 4 * 10**9
"""It holds each of the two runs with the workers, but not both."""
NEAR_PEAK = 1_800_000_000
"""Bytes that a run uses near its peak, and no other process does."""


@pytest.fixture
def memory_limit() -> Iterator[MemoryLimit]:
    try:
        limit = MemoryLimit(LIMIT)
    except LimitUnavailable as error:
        pytest.skip(str(error))
    yield limit
    limit.remove()


@pytest.fixture
def lab(memory_limit: MemoryLimit, tmp_path: Path) -> Iterator[Lab]:
    """`mpt serve` as its processes, without workers yet. All end before their limit is removed."""
    settings = Settings(store=tmp_path / "store", database_url=None)
    prepare(settings)
    lab = Lab(settings, tmp_path / "log", times={})
    try:
        lab.start("api", "api", "--port", str(lab.port))
        yield lab
    finally:
        lab.stop()


def start_workers(lab: Lab, limit: MemoryLimit) -> None:
    for i in range(2):
        limit.add(lab.start(f"worker{i}", "-m", "worker", "cpu", "--local").pid)


def submit(client: Client) -> list[str]:
    """Submit two runs of 2.24 GiB each."""
    schedule = {"schedule": "fixed", "size": 5, "per_size": 4000}
    spec = ppca_spec(data__n=620_000, data__dim=100, evaluate={"masks": schedule})
    return [client.submit(spec, cache=False)["id"] for _ in range(2)]


def workers_of_small_runs(client: Client) -> set[str]:
    """Run two small experiments, and return the workers that ran them."""
    ids = [client.submit(ppca_spec(), cache=False)["id"] for _ in range(2)]
    return {run["attempts"][0]["worker"] for run in ends(client, ids)}


def limit_running(database: Database, most: int | None) -> None:
    with database.transaction() as session:
        session.execute(update(User).values(max_running=most))
        notify(session)


def hold_the_first_until_a_kill(limit: MemoryLimit) -> None:
    """Stop the first run that is near its peak until the kernel has killed one for memory. So both
    are there together, however short they are."""
    deadline = time.monotonic() + 120
    while (first := limit.user_of(NEAR_PEAK)) is None:
        assert time.monotonic() < deadline, "no run comes near its peak"
        time.sleep(0.02)
    first.suspend()
    wait_until(lambda: limit.kills > 0, 300, "a kill for memory")
    with suppress(psutil.NoSuchProcess):
        first.resume()


def ends(client: Client, ids: list[str]) -> list[dict[str, Any]]:
    """Wait for the ends of the runs, and return the experiments."""
    wait_until(
        lambda: all(client.get(one)["status"] in TERMINAL for one in ids), 900, "the runs' ends"
    )
    experiments = [client.get(one) for one in ids]
    assert [(one["status"], one["failure"]) for one in experiments] == 2 * [("succeeded", None)]
    return experiments


def test_runs_that_exceed_the_memory_together_run_one_after_the_other(
    lab: Lab, memory_limit: MemoryLimit
) -> None:
    with lab.client() as client:
        start_workers(lab, memory_limit)
        ids = submit(client)
        reasons: set[str] = set()

        def is_waiting() -> bool:
            position = client.get(ids[1])["queue"]
            reasons.add("" if position is None else position["reason"])
            return any("it waits for main memory" in reason for reason in reasons)

        wait_until(is_waiting, 120, f"a reason, not {reasons}")
        first, second = ends(client, ids)
    assert len(first["attempts"]) == len(second["attempts"]) == 1
    assert memory_limit.kills == 0


def test_a_run_that_the_kernel_kills_beside_another_one_runs_again(
    lab: Lab, memory_limit: MemoryLimit
) -> None:
    """Both are expected to need almost nothing, and start at once. The kernel kills one; it runs
    again once there is the memory that it had used."""
    with lab.client() as client, closing(Database(lab.settings.url)) as database:
        start_workers(lab, memory_limit)
        wait_until(lambda: len(workers_of_small_runs(client)) == 2, 300, "two ready workers")
        limit_running(database, 0)
        ids = submit(client)
        for one in ids:
            change(database, one, memory_bytes=1)
        limit_running(database, None)
        hold_the_first_until_a_kill(memory_limit)
        experiments = ends(client, ids)
        events = [event for one in ids for event in status_events(database, one)]
    assert sorted(len(one["attempts"]) for one in experiments) == [1, 2]
    (handed_back,) = (event for event in events if event.get("reason") == "memory")
    others = (
        r"while \d other runs? of this service used the same memory"  # small ones ended just now
    )
    assert re.search(others, handed_back["message"])
