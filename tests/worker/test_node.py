"""A node: garbage in Redis does not end it or make it deaf, and it ends in time."""

import base64
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr
from redis import Redis as Client

from service.db.engine import Database
from service.experiments.models import Queue
from service.queue.dispatch import Dispatch
from service.settings import Settings
from tests.support.forks import fork
from tests.support.processes import Lab, wait_until
from tests.support.servers import Redis
from worker.celery_app import RUN, make_celery
from worker.dispatcher import Dispatcher
from worker.fitness import UnfitWorker
from worker.node import Node
from worker.supervisor import UNHEARD_S

ETA_MESSAGES = 2000


@pytest.fixture
def node(lab: Settings) -> Iterator[Lab]:
    """A node that is idle, in a lab without a dispatcher."""
    made = Lab(lab, lab.store / "lab.log", fork)
    made.start("node", "worker", "cpu", MPT_WARM_PARENT="false")
    yield made
    made.stop()


def message(**changes: Any) -> bytes:
    """A message of Celery, as it lies in Redis."""
    body = base64.b64encode(json.dumps([["id", 1], {}, {}]).encode()).decode()
    delivery = {"exchange": "", "routing_key": "cpu"}
    properties = {"delivery_tag": "tag", "delivery_info": delivery, "body_encoding": "base64"}
    headers = {"task": RUN, "id": "id"}
    whole = {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": properties,
    }
    return json.dumps({**whole, **changes}).encode()


UNACKED_KEYS = ("unacked", "unacked_index")
"""Keys of Celery that a node does not use."""
GARBAGE = (
    b"",
    b"\xff\xfe",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"{}",
    b"[" * 100_000,
    message(properties=None),
    message(properties={}),
    message(headers=None),
    message(headers=7),
    message(headers={"task": ["unhashable"], "id": "id"}),
    message(headers={"task": {}, "id": "id"}),
    message(headers={"task": "another", "id": "id"}),
    message(headers={"task": RUN}),
    message(headers={"task": RUN, "id": "id", "eta": "no time"}),
    message(headers={"task": RUN, "id": "id", "expires": "no time"}),
    message(headers={"task": RUN, "id": "id", "timelimit": 7}),
    message(headers={"task": RUN, "id": "id", "timelimit": ["no", "time"]}),
    message(body=base64.b64encode(b'[["id", 1], {}, {"chain": [{"task": "run"}]}]').decode()),
    message(body="not base64"),
    message(body=base64.b64encode(b"not JSON").decode()),
    message(body=base64.b64encode(b"7").decode()),
    message(body=base64.b64encode(b'["no", "call"]').decode()),
    message(**{"content-type": "application/x-python-serialize"}),
    message(**{"content-encoding": "none"}),
)


def test_garbage_and_delayed_messages_are_dropped(node: Lab) -> None:
    """A dispatch that follows them is taken."""
    settings = node.settings
    assert settings.broker_url is not None
    broker = Client.from_url(settings.broker_url)
    celery = make_celery(settings)
    later = message(headers={"task": RUN, "id": "id", "eta": "2099-01-01T00:00:00Z"})
    broker.lpush("cpu", *[later] * ETA_MESSAGES, *GARBAGE)
    wait_until(lambda: not broker.exists("cpu"), 120, "no message that waits")
    celery.send_task(RUN, args=["real", 17], queue="cpu")
    wait_until(lambda: "dispatch 17 is stale" in node.log.read_text(), 120, "the dispatch")
    wait_until(lambda: not broker.exists("cpu", *UNACKED_KEYS), 60, "no message that is kept")
    assert node.processes["node"].poll() is None
    assert node.log.read_text().count("it has an ETA") >= ETA_MESSAGES


QUEUE_KEYS = ("cpu", "cpu\x06\x163", "_kombu.binding.cpu", "_kombu.binding_permanent.cpu")


def test_keys_of_a_wrong_type_are_deleted(lab: Settings) -> None:
    """The node deletes them at its start and while it runs. It receives later dispatches."""
    assert lab.broker_url is not None
    broker = Client.from_url(lab.broker_url)
    celery = make_celery(lab)
    node = Lab(lab, lab.store / "lab.log", fork)

    def set_wrong(*keys: str) -> None:
        for key in keys:
            broker.delete(key)
            broker.set(key, "no list")

    def wait_until_right(*keys: str) -> None:
        wait_until(lambda: b"string" not in map(broker.type, keys), 120, f"no string at {keys}")

    def wait_until_taken(number: int) -> None:
        celery.send_task(RUN, args=["real", number], queue="cpu")
        taken = f"dispatch {number} is stale"
        wait_until(lambda: taken in node.log.read_text(), 120, taken)

    set_wrong(*QUEUE_KEYS, *UNACKED_KEYS)
    try:
        node.start("node", "worker", "cpu", MPT_WARM_PARENT="false")
        wait_until_right(*QUEUE_KEYS)
        wait_until_taken(17)
        set_wrong("cpu")
        wait_until_right("cpu")
        wait_until_taken(18)
        assert node.processes["node"].poll() is None
    finally:
        node.stop()


@pytest.fixture
def rung(settings: Settings) -> Settings:
    """Settings with a broker that nothing here connects to."""
    return settings.model_copy(update={"redis_url": SecretStr("redis://127.0.0.1:1/0")})


def test_a_node_whose_consumer_ends_by_itself_fails(
    rung: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(rung.model_copy(update={"warm_parent": False}), Queue.CPU)
    given: list[str] = []
    monkeypatch.setattr(node.celery, "worker_main", given.extend)
    with pytest.raises(SystemExit) as ended:
        node.run()
    assert ended.value.code == 1
    words = "--quiet worker --queues cpu --pool solo"
    words += " --without-gossip --without-mingle --without-heartbeat --loglevel INFO"
    assert given == words.split()


@pytest.mark.parametrize("lifetime_s", [None, 100.0])
def test_the_threads_of_a_node(
    rung: Settings, monkeypatch: pytest.MonkeyPatch, lifetime_s: float | None
) -> None:
    """Heartbeats with its state, idle or not, whether its broker answers, and its end of
    lifetime."""
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    node = Node(rung.model_copy(update={"warm_parent": False}), Queue.CPU, lifetime_s)
    started: list[tuple[Any, ...]] = []

    def start(*given: Any) -> threading.Thread:
        started.append(given)
        thread = threading.Thread(target=lambda: None)
        thread.start()
        return thread

    monkeypatch.setattr(node.lifetime, "start", start)
    monkeypatch.setattr("worker.node.broker_answers", lambda settings: settings is node.settings)
    monkeypatch.setattr(node.celery, "worker_main", lambda arguments: node._shut_down())
    node.run()
    *ends, (beats, stopping, is_idle, broker_answers, restart) = started
    assert ends == ([] if lifetime_s is None else [(node._end_in_time, lifetime_s)])
    assert (beats, stopping) == (node.slot.presence.run, node.stopping)
    assert (is_idle, restart) == (node._is_idle, node._restart)
    assert broker_answers() is True


def test_a_stopping_node_does_not_restart(rung: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(rung.model_copy(update={"warm_parent": False}), Queue.CPU)
    monkeypatch.setattr(node.celery, "worker_main", lambda arguments: node._shut_down())
    node.run()
    assert not node.lifetime.failed


class Slots:
    """Replaces a node's slot: it records the requested runs."""

    def __init__(self, error: Exception | None = None):
        self.ran: list[tuple[str, int]] = []
        self.error = error

    def run(self, experiment_id: str, dispatch_no: int, is_stopping: object) -> None:
        self.ran.append((experiment_id, dispatch_no))
        if self.error:
            raise self.error


@pytest.mark.parametrize("event", ["stopping", "retiring"])
def test_an_ending_node_starts_no_run(
    rung: Settings, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    node, slot = Node(rung, Queue.CPU), Slots()
    monkeypatch.setattr(node, "slot", slot)
    node._run("before", 1)
    getattr(node.lifetime, event).set()
    node._run("after", 2)
    assert slot.ran == [("before", 1)]


def test_a_node_that_cannot_start_runs_fails(
    rung: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, failed = Node(rung, Queue.CPU), []
    monkeypatch.setattr(node, "slot", Slots(UnfitWorker()))
    monkeypatch.setattr(node.lifetime, "fail", lambda: failed.append(True))
    node._run("one", 1)
    assert failed == [True]


@pytest.mark.parametrize(
    ("lifetime_s", "more"),
    [(None, []), (100.0, ["--lifetime", "60s"]), (30.0, ["--lifetime", "1s"])],
)
def test_a_deaf_node_restarts_with_its_remaining_time(
    rung: Settings,
    monkeypatch: pytest.MonkeyPatch,
    lifetime_s: float | None,
    more: list[str],
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    node = Node(rung, Queue.GPU, lifetime_s)
    began: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda *given: began.append(given))
    now += 40
    with node.slot.occupied:
        assert not node._is_idle()
        node._restart()
    assert began == []
    assert node._is_idle()
    node._restart()
    words = [sys.executable, "-m", "worker.node", "gpu", *more]
    assert began == [(sys.executable, words)]
    assert not node._is_idle()  # a dispatch that comes now is for the new process


@pytest.mark.parametrize("was_told", [False, True])
def test_a_signal_before_the_node_listens_is_not_lost(
    rung: Settings, monkeypatch: pytest.MonkeyPatch, was_told: bool
) -> None:
    """Celery replaces the handlers of signals when it begins."""
    node = Node(rung, Queue.CPU)
    handled: list[str] = []
    monkeypatch.setattr(node.lifetime, "stop_on_notice", lambda: handled.append("notice"))
    monkeypatch.setattr(node.lifetime, "stop", lambda: handled.append("stop"))
    if was_told:
        node.stopping.set()
    node._take_notice(sender=None)
    assert handled == ["notice", *(["stop"] if was_told else [])]


def test_garbage_in_redis_does_not_end_a_dispatcher(settings: Settings, redis: Redis) -> None:
    """The reaper requeues dispatches whose notification failed."""
    on_redis = settings.model_copy(update={"redis_url": SecretStr(redis.new_url())})
    assert on_redis.broker_url is not None
    Client.from_url(on_redis.broker_url).set("cpu", "no list")
    dispatcher = Dispatcher(Database(on_redis.url), on_redis, make_celery(on_redis))
    dispatcher._ring(Dispatch("0123", 1, Queue.CPU))


@pytest.mark.parametrize(
    ("left_s", "retire_s", "stop_s"), [(1000.0, 873.0, 973.0), (50.0, 0.0, 23.0), (10.0, 0.0, 0.0)]
)
def test_a_node_stops_early_enough_to_hand_back(
    rung: Settings,
    monkeypatch: pytest.MonkeyPatch,
    left_s: float,
    retire_s: float,
    stop_s: float,
) -> None:
    """A run may need its grace, and its end is known some seconds later. No run begins that could
    not save a checkpoint."""
    times = {"kill_grace_s": 22.0, "checkpoint_every_s": 100.0}
    node = Node(rung.model_copy(update=times), Queue.CPU)
    given: list[Any] = []
    monkeypatch.setattr(node.lifetime, "end_after", lambda *times: given.extend(times))
    node._end_in_time(left_s)
    assert UNHEARD_S == 5.0
    assert given == [retire_s, stop_s, node._is_idle]
