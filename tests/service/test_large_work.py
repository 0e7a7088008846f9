"""Large computations of a process are done one at a time."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.large_work import LARGE, in_turn
from service.submission import submit
from service.web.routes import sweeps
from tests.service.sweeps.test_sweeps import SPEC, sweep
from tests.support.processes import wait_until


def test_one_large_computation_runs_at_a_time() -> None:
    """Whoever it is for. Small ones wait for none."""
    running, most, guard = 0, 0, Lock()

    def compute(user_id: int) -> None:
        nonlocal running, most
        with in_turn(user_id, LARGE):
            with guard:
                running += 1
                most = max(most, running)
            time.sleep(0.001)
            with in_turn(user_id, LARGE - 1), guard:
                running -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(compute, [1, 2, 3, 4] * 20))
    assert most == 1


def test_a_user_has_one_place_in_the_queue() -> None:
    """Another user is next, though the first has several requests that wait for longer."""
    order: list[int] = []
    began, may_end = Event(), Event()

    def compute(user_id: int) -> None:
        with in_turn(user_id, LARGE):
            began.set()
            assert may_end.wait(60)
            time.sleep(0.1)  # the others arrive
            order.append(user_id)

    with ThreadPoolExecutor(8) as pool:
        pool.submit(compute, 1)
        assert began.wait(60)
        for _ in range(3):
            pool.submit(compute, 1)
        wait_until(lambda: pool._work_queue.empty())
        pool.submit(compute, 2)
        wait_until(lambda: pool._work_queue.empty())
        may_end.set()
    assert order.index(2) <= 2


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of parts of the computations that took their turn."""
    found: list[int] = []

    def noted(user_id: int, parts: int) -> Any:
        found.append(parts)
        return in_turn(user_id, parts)

    for module in (submit, sweeps):
        monkeypatch.setattr(module, "in_turn", noted)
    return found


def test_requests_take_their_turn_with_all_their_points(api: TestClient, parts: list[int]) -> None:
    """Outside of transactions: one that waits holds up no other."""
    many: Any = {"grid": {"seeds": [[i] for i in range(5)]}}
    made = sweep(api, **many)
    api.post(made["urls"]["points"], json=many | {"cache": False})
    api.post("/v1/experiments:batch", json={"experiments": [{"spec": SPEC}] * 3})
    api.post("/v1/experiments", json={"spec": SPEC})
    assert parts == [5, 5, 3, 1]
    parts.clear()
    assert api.get(made["urls"]["table"]).status_code == 200
    api.post(f"/v1/sweeps/{made['id']}:retry")
    assert parts == [10, 10]
