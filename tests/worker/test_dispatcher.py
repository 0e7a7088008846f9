"""When the dispatcher looks for idle workers."""

import threading
from itertools import groupby
from types import SimpleNamespace

import pytest
from celery import Celery

from service.database import Database
from service.experiments.dispatch import Dispatch
from service.experiments.models import Queue
from service.settings import Settings
from worker import dispatcher
from worker.dispatcher import EAGER_S, EAGERNESS, Dispatcher


class Clock(threading.Event):
    """A stop that comes at the end of a day whose time passes only where someone waits for it."""

    now = 0.0
    ends_at = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        self.now += timeout or 0.0
        return self.now >= self.ends_at


def test_it_looks_more_often_for_a_while_after_a_choice(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings.model_copy(update={"poll_s": 0.125})
    day, rung = Clock(), []
    monkeypatch.setattr(dispatcher, "time", SimpleNamespace(monotonic=lambda: day.now))
    chosen = Dispatch("0123", 1, Queue.CPU)
    at_one = iter([chosen])

    class Scripted(Dispatcher):
        def dispatch(self) -> list[Dispatch]:
            return list(at_one) if day.now >= 1.0 else []

        def _ring(self, chosen: Dispatch) -> None:
            rung.append((day.now, chosen))

    Scripted(Database(given.url), given, Celery()).run(day)
    assert rung == [(1.0, chosen)]
    assert [pause for pause, _ in groupby(day.waited)] == [0.125, 0.125 / EAGERNESS, 0.125]
    assert sum(pause for pause in day.waited if pause < 0.125) == pytest.approx(EAGER_S, abs=0.05)
