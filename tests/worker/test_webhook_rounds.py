"""Times at which the messenger looks for deliveries and forgets old ones."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from service.db.engine import Database
from service.settings import Settings
from service.webhooks import store
from worker import messenger as messengers
from worker.messenger import FORGET_S, LOOK_S, PAUSE_S, Messenger


@pytest.fixture
def messenger(database: Database, settings: Settings) -> Messenger:
    return Messenger(database, settings)


def test_it_looks_again_soon_after_it_found_something(
    messenger: Messenger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is unreachable counts as nothing found, and ends no messenger."""
    stopping, waited = threading.Event(), list[float]()
    found = iter([0, 2, None, 1])

    async def begin() -> int:
        begun = next(found)
        if begun is None:
            raise OperationalError("away", None, Exception())
        return begun

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 4:
            stopping.set()

    monkeypatch.setattr(messenger, "_begin", begin)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    messenger.run(stopping)
    assert waited == [LOOK_S, PAUSE_S, LOOK_S, PAUSE_S]


def test_old_deliveries_are_forgotten_once_an_hour(
    messenger: Messenger, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, done = 1000.0, list[Any]()

    def forget(session: Any) -> None:
        done.append(session.in_transaction())

    monkeypatch.setattr(messengers, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(store, "forget", forget)
    messenger._forget_due = now
    for passed_s, times in ((0.0, 1), (FORGET_S - 1, 1), (1.0, 2), (1.0, 2)):
        now += passed_s
        messenger._forget()
        assert done == [True] * times
