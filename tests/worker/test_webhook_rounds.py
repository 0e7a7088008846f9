"""A messenger survives outages of the database, and forgets old deliveries."""

import asyncio
import threading

import pytest
from sqlalchemy.exc import OperationalError

from service.db.engine import Database
from service.settings import Settings
from service.webhooks import store
from worker.messenger import Messenger


def test_an_outage_of_the_database_ends_no_messenger(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    messenger, stopping = Messenger(database, settings), threading.Event()
    looks: list[int] = []
    cleanings: list[bool] = []

    async def begin() -> int:
        looks.append(1)
        if len(looks) < 3:
            raise OperationalError("away", None, Exception())
        stopping.set()
        return 0

    async def sleep(seconds: float) -> None:
        assert seconds > 0

    monkeypatch.setattr(messenger, "_begin", begin)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(store, "forget", lambda session: cleanings.append(session.in_transaction()))
    messenger.run(stopping)
    assert len(looks) == 3
    messenger._forget()
    assert cleanings == [True]
