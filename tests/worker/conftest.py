"""A supervisor with a clock that does not move between two reads of its runner."""

from typing import Any

import pytest

from service.db.engine import Database
from service.queue.lease import Claim
from service.records import recording
from service.settings import Settings
from tests.support.attempts import claimed
from tests.support.ppca_spec import ppca_spec
from tests.support.scripted import BEGAN, LIMIT_S, LOOK_S, Clock, Watch
from worker import supervisor


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(supervisor, "FLUSH_S", 4 * LOOK_S)
    monkeypatch.setattr(supervisor, "READ_S", LOOK_S)
    return clock


@pytest.fixture
def claim(database: Database) -> Claim:
    return claimed(database, ppca_spec(compute__max_runtime_s=LIMIT_S))


@pytest.fixture
def watch(
    database: Database,
    settings: Settings,
    claim: Claim,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> Watch:
    watch = Watch(database, settings, claim, clock)

    def noting(session: Any, of: Claim, batch: Any, lease_s: float) -> Any:
        watch.commits.append((clock.now - BEGAN, batch.size))
        assert lease_s == 30.0
        return recording.record(session, of, batch, lease_s)

    monkeypatch.setattr(supervisor, "record", noting)
    return watch
