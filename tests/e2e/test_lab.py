"""Lab mode: PostgreSQL, Redis, Celery, every part a process of its own."""

import signal
import time

import psutil
import pytest

from mptlab import Client
from service.experiments.models import Queue
from service.settings import Settings
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab, lab_processes, wait_until
from tests.support.servers import PostgreSQL, Redis
from worker import tickets
from worker.tickets import make_celery

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


def wait_for_attempt(client: Client, experiment_id: str, number: int) -> None:
    """Wait until a runner of this attempt has reported progress, which a claim clears."""

    def has_begun() -> bool:
        run = client.get(experiment_id)
        return run["attempt"] == number and bool(run["progress"])

    wait_until(has_begun, what=f"attempt {number}")


def child_of(process: psutil.Process) -> psutil.Process:
    wait_until(lambda: len(process.children()) == 1, what="a single child")
    return process.children()[0]


def test_a_run_outlives_every_process_that_computes_it(lab: Settings) -> None:
    """Its node is stopped and hands it back; then its runner, the warm parent and the node are
    killed. The storm kills the controller and the API too."""
    with lab_processes(lab) as running, running.client() as client:
        spec = ppca_spec(data__dim=60, evaluate__masks__per_size=40_000)
        submitted = client.submit(spec, cache=False)["id"]
        began(running, submitted)
        node = running.processes["worker0"]
        family = [node, *node.children(recursive=True)]
        node.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive
        assert client.get(submitted)["status"] == "queued"
        assert client.workers() == []
        node = running.start("worker0", "worker", "cpu")
        wait_for_attempt(client, submitted, 2)
        child_of(child_of(node)).kill()
        wait_for_attempt(client, submitted, 3)
        child_of(node).kill()
        wait_for_attempt(client, submitted, 4)
        node.kill()
        node.wait()
        running.start("worker0", "worker", "cpu")
        ended = client.wait(submitted, timeout_s=90)
        assert (ended["status"], ended["attempt"]) == ("succeeded", 5)
        (series,) = client.curves(submitted, "score")
        assert series["x"] == list(range(1, 61))


@pytest.mark.slow
def test_broker_outage(lab: Settings, redis: Redis) -> None:
    """Submitting and reading need no broker. What was submitted meanwhile starts in the end."""
    with lab_processes(lab) as running, running.client() as client:
        wait_until(lambda: bool(client.workers()), what="a worker")
        redis.stop()
        submitted = client.submit(ppca_spec(), cache=False)["id"]
        time.sleep(3.5)
        assert client.get(submitted)["status"] in ("queued", "running", "succeeded")
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


def test_runs_start_once_with_tickets_beyond_need_and_without_any(
    lab: Settings, redis: Redis
) -> None:
    """Without a controller no ticket comes, and idle workers look by themselves."""
    with lab_processes(lab, workers=2) as running, running.client() as client:
        wait_until(lambda: len(client.workers()) == 2, what="the workers")
        celery = make_celery(lab)
        ids = []
        for _ in range(5):
            ids.append(client.submit(ppca_spec(), cache=False)["id"])
            tickets.fill(celery, Queue.CPU, 20)
        for experiment_id in ids:
            ended = client.wait(experiment_id, timeout_s=60)
            assert (ended["status"], ended["attempt"]) == ("succeeded", 1)
        running.processes["controller"].kill()
        running.processes["controller"].wait()
        redis.flush()
        submitted = client.submit(ppca_spec(), cache=False)["id"]
        assert client.wait(submitted, timeout_s=60)["status"] == "succeeded"


@pytest.mark.slow
def test_a_second_controller_takes_over(lab: Settings) -> None:
    """The first is frozen. When it wakes, it does not lead."""
    with lab_processes(lab) as running, running.client() as client:
        wait_until(lambda: bool(client.workers()), what="a worker")
        first = running.processes["controller"]
        first.suspend()
        running.start("controller2", "controller")
        submitted = client.submit(MEDIUM, cache=False)["id"]
        began(running, submitted)
        running.processes["worker0"].kill()
        wait_until(lambda: client.get(submitted)["status"] == "queued", what="an expired lease")
        first.resume()
        running.start("worker1", "worker", "cpu")
        assert client.wait(submitted, timeout_s=90)["status"] == "succeeded"
