"""Lab mode: PostgreSQL, Redis, Celery, every part a process of its own."""

import signal
import time

import psutil
import pytest

from service.db.engine import Database
from service.experiments.models import Queue
from service.queue.dispatch import dispatch_next
from service.settings import Settings
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab, lab_processes, wait_until
from tests.support.servers import PostgreSQL, Redis
from worker.celery_app import make_celery, ring

LONG = ppca_spec(data__dim=150, evaluate__masks__per_size=200_000)
MEDIUM = ppca_spec(data__dim=60, evaluate__masks__per_size=25_000)


def began(lab: Lab, experiment_id: str) -> None:
    """Wait for the first progress."""
    with lab.client() as client:
        wait_until(lambda: bool(client.get(experiment_id)["progress"]), what="progress")


def test_from_submission_to_curves_and_cancel_pause_resume(lab: Settings) -> None:
    with lab_processes(lab) as running, running.client() as client:
        first = client.submit(LONG, cache=False)["id"]
        began(running, first)
        client.pause(first)
        wait_until(lambda: client.get(first)["status"] == "paused")
        second = client.submit(ppca_spec(), cache=False)["id"]  # the slot is free
        ended = client.wait(second, timeout_s=60)
        assert (ended["status"], ended["attempt"]) == ("succeeded", 1)
        (worker,) = client.workers()
        assert ended["worker"] == worker["id"]
        (series,) = client.curves(second, "score")
        assert series["x"] == [1, 2, 3, 4, 5, 6]
        client.resume(first)
        began(running, first)
        asked = time.monotonic()
        client.cancel(first)
        ended = client.wait(first, timeout_s=60)
        assert ended["status"] == "cancelled"
        assert time.monotonic() - asked < 15
        again = client.retry(first)
        assert (again["status"], again["retry_of"]) == ("queued", first)
        client.cancel(again["id"])


def test_a_stopped_node_hands_back_its_run(lab: Settings) -> None:
    with lab_processes(lab) as running, running.client() as client:
        submitted = client.submit(MEDIUM, cache=False)["id"]
        began(running, submitted)
        node = running.processes["worker0"]
        family = [node, *node.children(recursive=True)]
        node.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive
        # It may be dispatched once more before the node has signed off; the next node takes it.
        assert client.get(submitted)["status"] in ("queued", "dispatched")
        assert client.workers() == []
        running.start("worker0", "worker", "cpu")
        ended = client.wait(submitted, timeout_s=60)
        assert (ended["status"], ended["attempt"]) == ("succeeded", 2)


@pytest.mark.slow
def test_broker_outage(lab: Settings, redis: Redis) -> None:
    """Submitting and reading need no broker; dispatches made during the outage are not lost."""
    with lab_processes(lab) as running, running.client() as client:
        wait_until(lambda: bool(client.workers()), what="a worker")
        redis.stop()
        submitted = client.submit(ppca_spec(), cache=False)["id"]
        time.sleep(3.5)
        assert "it is deaf" not in running.log.read_text()
        assert client.get(submitted)["status"] in ("queued", "dispatched")
        redis.start()
        assert client.wait(submitted, timeout_s=60)["status"] == "succeeded"


@pytest.mark.slow
def test_broker_loses_messages_and_stops_answering(lab: Settings, redis: Redis) -> None:
    with lab_processes(lab) as running, running.client() as client:
        wait_until(lambda: bool(client.workers()), what="a worker")
        ids = []
        for _ in range(3):
            ids.append(client.submit(ppca_spec(), cache=False)["id"])
            redis.flush()
        for experiment_id in ids:
            assert client.wait(experiment_id, timeout_s=60)["status"] == "succeeded"
        redis.freeze()
        submitted = client.submit(ppca_spec(), cache=False)["id"]
        time.sleep(5)
        redis.thaw()
        assert client.wait(submitted, timeout_s=60)["status"] == "succeeded"


@pytest.mark.slow
def test_database_outage_during_a_run(lab: Settings, postgresql: PostgreSQL) -> None:
    """The run continues, its records wait, and nothing is reaped when the database is back."""
    with lab_processes(lab) as running, running.client() as client:
        submitted = client.submit(MEDIUM, cache=False)["id"]
        began(running, submitted)
        postgresql.stop()
        time.sleep(4)  # two leases
        postgresql.start()
        wait_until(client.is_ready)
        ended = client.wait(submitted, timeout_s=90)
        assert (ended["status"], ended["attempt"]) == ("succeeded", 1)
        (series,) = client.curves(submitted, "score")
        assert series["x"] == list(range(1, 61))


@pytest.mark.parametrize("victim", ["node", "runner"])
def test_killed(lab: Settings, victim: str) -> None:
    """The storm kills the dispatcher and the API too."""
    with lab_processes(lab) as running, running.client() as client:
        submitted = client.submit(MEDIUM, cache=False)["id"]
        began(running, submitted)
        process: psutil.Process = running.processes["worker0"]
        if victim == "runner":
            process = max(process.children(), key=lambda child: child.cpu_times().user)
        process.kill()
        if victim == "node":
            process.wait()
            running.start("worker0", "worker", "cpu")
        ended = client.wait(submitted, timeout_s=90)
        assert ended["status"] == "succeeded"
        assert ended["attempt"] == 2
        (series,) = client.curves(submitted, "score")
        assert series["x"] == list(range(1, 61))


@pytest.mark.slow
def test_a_node_frozen_past_its_lease_writes_nothing(lab: Settings) -> None:
    with lab_processes(lab, workers=2) as running, running.client() as client:
        submitted = client.submit(MEDIUM, cache=False)["id"]
        began(running, submitted)
        holder = client.get(submitted)["worker"]
        (frozen,) = [p for p in running.processes.values() if holder.endswith(f":{p.pid}")]
        frozen.suspend()
        wait_until(
            lambda: client.get(submitted)["attempt"] == 2, timeout_s=120, what="a second attempt"
        )
        frozen.resume()
        ended = client.wait(submitted, timeout_s=90)
        assert (ended["status"], ended["attempt"]) == ("succeeded", 2)
        (series,) = client.curves(submitted, "score")
        assert series["x"] == list(range(1, 61))
        assert frozen.is_running()


def test_duplicate_notifications_start_each_run_once(lab: Settings) -> None:
    """Doubled and old messages find a dispatch that is not theirs: one attempt per claim."""
    with lab_processes(lab) as running, running.client() as client:
        wait_until(lambda: bool(client.workers()), what="a worker")
        celery = make_celery(lab)
        ids = [client.submit(ppca_spec(), cache=False)["id"] for _ in range(2)]
        for _ in range(10):
            for experiment_id in ids:
                for dispatch_no in (0, 1, 2):
                    ring(celery, Queue.CPU, experiment_id, dispatch_no)
        for experiment_id in ids:
            ended = client.wait(experiment_id, timeout_s=60)
            assert (ended["status"], ended["attempt"]) == ("succeeded", 1)
        for experiment_id in ids:
            ring(celery, Queue.CPU, experiment_id, 1)
        last = client.submit(ppca_spec(), cache=False)["id"]
        assert client.wait(last, timeout_s=60)["status"] == "succeeded"
        assert [client.get(i)["attempt"] for i in ids] == [1, 1]


@pytest.mark.slow
def test_a_node_that_receives_no_messages_restarts(lab: Settings) -> None:
    """A dispatch whose notification was lost, while the only node is idle."""
    with lab_processes(lab, MPT_DISPATCH_TIMEOUT_S="6") as running, running.client() as client:
        wait_until(lambda: bool(client.workers()), what="a worker")
        running.processes["dispatcher"].kill()
        submitted = client.submit(ppca_spec(), cache=False)["id"]
        with Database(lab.url).transaction() as session:
            assert dispatch_next(session) is not None
        wait_until(lambda: "it is deaf" in running.log.read_text(), what="deafness")
        running.start("dispatcher", "dispatcher")
        assert client.wait(submitted, timeout_s=60)["status"] == "succeeded"
        assert running.processes["worker0"].is_running()
