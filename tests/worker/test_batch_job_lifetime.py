"""A worker with a limited lifetime, as in a batch job: real processes."""

import argparse
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from mptlab import Client
from service.db.engine import Database
from service.experiments.models import Experiment
from service.queue import lease
from service.settings import Settings
from tests.support.forks import fork
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab, wait_until
from worker.lifetime import duration

LONG = ppca_spec(data__dim=60, evaluate__masks__per_size=1_000_000)
END_S = 3 + 5
"""MPT_KILL_GRACE_S in these tests, plus the time until the end of a process is noticed."""


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("45m", 2700), ("3h", 10_800), ("1.5d", 129_600)]
)
def test_a_duration(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "3", "h", "-3h", "0s", "3 h", "03:00:00", "infh"])
def test_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as 90s"):
        duration(text)


@pytest.fixture
def running(lab: Settings) -> Iterator[Lab]:
    """A lab that lacks workers."""
    made = Lab(lab, lab.store / "lab.log", fork)
    made.start_all(workers=0)
    yield made
    made.stop()


@pytest.fixture
def client(running: Lab) -> Iterator[Client]:
    with running.client() as made:
        yield made


def worker(running: Lab, lifetime_s: float, **more: str) -> Any:
    return running.start("worker", "worker", "cpu", "--lifetime", f"{lifetime_s:g}s", **more)


def events(running: Lab, text: str) -> int:
    return running.log.read_text().count(text)


@pytest.mark.slow
def test_a_run_is_handed_back_before_the_end(running: Lab, client: Client) -> None:
    """Another worker continues it from there, and no loss is counted."""
    submitted = client.submit(LONG)["id"]
    first = worker(running, END_S + 25)
    assert first.wait(timeout=150) == 0
    handed_back = client.get(submitted)
    assert (handed_back["status"], handed_back["attempt"]) == ("queued", 1)
    assert not client.workers()
    worker(running, 3600)
    wait_until(lambda: client.get(submitted)["attempt"] == 2, what="a second attempt")
    with closing(Database(running.settings.url)) as database, database.snapshot() as session:
        experiment = session.get_one(Experiment, submitted)
        (checkpoint, *_) = lease.checkpoints(session, submitted)
    assert experiment.lost == 0
    assert checkpoint.after_seq > 0
    assert not events(running, "left no checkpoint in time")


def test_no_run_starts_without_time_for_a_checkpoint(running: Lab, client: Client) -> None:
    """The remaining time is shorter than the time for a checkpoint and the end."""
    submitted = client.submit(LONG)["id"]
    assert worker(running, 600, MPT_CHECKPOINT_EVERY_S="600").wait(timeout=150) == 0
    assert events(running, "it starts no more runs") == 1
    assert not events(running, "attempt 1 begins")
    wait_until(lambda: client.get(submitted)["status"] == "queued")
    assert client.get(submitted)["attempt"] == 0


@pytest.mark.slow  # a fresh process that imports torch
def test_a_notice_before_it_is_ready(lab: Settings) -> None:
    """While torch is imported, as it is in a fresh process."""
    alone = Lab(lab, lab.store / "lab.log")
    node = worker(alone, 3600)
    try:
        wait_until(lambda: len(node.children()) > 0, what="its warm parent")
        node.send_signal(signal.SIGUSR1)
        assert node.wait(timeout=150) == 0
    finally:
        alone.stop()


def test_a_notice_hands_back(running: Lab, client: Client) -> None:
    submitted = client.submit(LONG)["id"]
    node = worker(running, 3600)
    wait_until(lambda: bool(client.get(submitted)["progress"]), 300, "progress")
    node.send_signal(signal.SIGUSR1)
    assert node.wait(timeout=300) == 0
    handed_back = client.get(submitted)
    assert (handed_back["status"], handed_back["attempt"]) == ("queued", 1)
