"""The start of each process of a lab: its parts, its signals, its GPU and its exit status."""

import sys
import threading
from inspect import unwrap
from types import ModuleType
from typing import Any

import pytest
from pydantic import SecretStr

from service.experiments.models import Queue
from service.settings import Settings
from worker import dispatcher, local, node, reaper
from worker.dispatcher import Dispatcher
from worker.lifetime import Lifetime
from worker.local import LocalWorker
from worker.messenger import Messenger
from worker.node import Node
from worker.reaper import Reaper
from worker.sweeper import Sweeper

STARTED = ["stop_on_signals"]
NODE_STARTED = ["stop_on_signals", "stop_on_notice"]


@pytest.fixture
def rung(settings: Settings) -> Settings:
    return settings.model_copy(update={"redis_url": SecretStr("redis://127.0.0.1:1/0")})


@pytest.fixture
def done(rung: Settings, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Settings for each process; a list of its actions, in place of signals and GPUs."""
    done: list[Any] = []
    for module in (dispatcher, local, node, reaper):
        monkeypatch.setattr(module, "begin", lambda: rung)
    for name in NODE_STARTED:
        monkeypatch.setattr(Lifetime, name, lambda self, name=name: done.append(name))
    for module in (local, node):
        monkeypatch.setattr(module, "hide_gpus", lambda: done.append("hide_gpus"))
    monkeypatch.setattr(node, "take_gpu", lambda settings: done.append(("take_gpu", settings)))
    return done


def start(module: ModuleType) -> None:
    unwrap(module.main)()  # without the settings of the log, which are the whole process's


def test_a_reaper_has_a_sweeper_and_a_messenger(
    rung: Settings, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []

    def run(self: Any, stopping: threading.Event) -> None:
        assert self.settings is rung
        assert self.database.engine.url.render_as_string(False) == rung.url
        assert not stopping.is_set()
        ran.append((type(self), stopping))

    def in_thread(self: Lifetime, part: Any, stopping: threading.Event) -> None:
        ran.append("in a thread")
        part(stopping)

    for part in (Reaper, Sweeper, Messenger):
        monkeypatch.setattr(part, "run", run)
    monkeypatch.setattr(Lifetime, "start", in_thread)
    start(reaper)
    assert done == STARTED
    stopping = ran[-1][1]
    sweeper, messenger = (Sweeper, stopping), (Messenger, stopping)
    assert ran == ["in a thread", sweeper, "in a thread", messenger, (Reaper, stopping)]


def test_a_dispatcher_notifies_through_the_broker(
    rung: Settings, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Dispatcher, stopping: threading.Event) -> None:
        assert self.settings is rung
        assert self.database.engine.url.render_as_string(False) == rung.url
        done.append(self.celery.conf.broker_url)

    monkeypatch.setattr(Dispatcher, "run", run)
    start(dispatcher)
    assert done == [*STARTED, rung.broker_url]


@pytest.mark.parametrize(("arguments", "queue"), [([], "cpu"), (["cpu"], "cpu"), (["gpu"], "gpu")])
def test_a_local_worker_has_a_gpu_or_sees_none(
    rung: Settings,
    done: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    queue: str,
) -> None:
    monkeypatch.setattr(local, "require_gpu", lambda: done.append("require_gpu"))
    monkeypatch.setattr(LocalWorker, "run", lambda self: done.append((self.settings, self.queue)))
    monkeypatch.setattr(sys, "argv", ["local", *arguments])
    start(local)
    first = {"cpu": "hide_gpus", "gpu": "require_gpu"}[queue]
    assert done == [first, *STARTED, (rung, Queue(queue))]


@pytest.mark.parametrize(
    ("arguments", "lifetime_s"),
    [(["cpu"], None), (["gpu"], None), (["cpu", "--lifetime", "90s"], 90.0)],
)
def test_a_node_has_its_queue_its_lifetime_and_perhaps_a_gpu(
    rung: Settings,
    done: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    lifetime_s: float | None,
) -> None:
    def run(self: Node) -> None:
        left_s = None if self.ends_at is None else self.ends_at - now
        done.append((self.settings, self.queue.value, left_s))

    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(Node, "run", run)
    monkeypatch.setattr(sys, "argv", ["node", *arguments])
    start(node)
    gpu = ("take_gpu", rung) if arguments[0] == "gpu" else "hide_gpus"
    assert done == [gpu, *NODE_STARTED, (rung, arguments[0], lifetime_s)]


@pytest.mark.parametrize("arguments", [[], ["tpu"], ["cpu", "--lifetime", "soon"]])
def test_a_node_that_is_called_wrongly_ends(
    done: list[Any], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["node", *arguments])
    with pytest.raises(SystemExit) as ended:
        start(node)
    assert ended.value.code == 2
    assert done == []


@pytest.mark.parametrize(("module", "runs"), [(local, LocalWorker), (reaper, Reaper)])
def test_a_part_that_failed_is_in_the_exit_status(
    done: list[Any], monkeypatch: pytest.MonkeyPatch, module: ModuleType, runs: type
) -> None:
    monkeypatch.setattr(sys, "argv", ["it"])
    monkeypatch.setattr(runs, "run", lambda *_: None)
    monkeypatch.setattr(Lifetime, "start", lambda *_: None)
    monkeypatch.setattr(Lifetime, "__init__", made)
    with pytest.raises(SystemExit) as ended:
        start(module)
    assert ended.value.code == 1


def made(lifetime: Lifetime) -> None:
    lifetime.stopping, lifetime.retiring = threading.Event(), threading.Event()
    lifetime.failed = True
