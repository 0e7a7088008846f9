"""Changes while a request is prepared."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.experiments.cache import CacheKeys
from service.places import Places
from service.web.gate import Gate


@pytest.fixture
def while_it_prepares(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> list[Callable[[], object]]:
    """Functions to call once, after the next spec of a request has been checked. They may be
    requests of the same user, which in another process would not wait for it."""
    gate: Gate = api.app.state.gate  # type: ignore[attr-defined]
    monkeypatch.setattr(gate, "_heavy", Places(2, of_user=2))
    todo: list[Callable[[], object]] = []
    find_key = CacheKeys.key

    def key(*arguments: Any) -> str | None:
        found = find_key(*arguments)
        if todo:
            todo.pop()()
        return found

    monkeypatch.setattr(CacheKeys, "key", key)
    return todo
