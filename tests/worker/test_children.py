"""Runners forked from a warm parent are like fresh ones, but for the seconds that torch takes."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import mptlab_contract
from tests.support.forks import SharedWarmParent
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until
from tests.support.runs import spec_of
from tests.support.stub import all_records
from tests.support.undisturbed import undisturbed_records
from worker import children
from worker.children import GONE, Forked, Spawned, WarmParent
from worker.runner import Runner
from worker.warm_parent import NUMBER, _send

SPEC = ppca_spec(compute__threads=2, data__dim=30, evaluate__masks__per_size=40)
LONG = ppca_spec(data__dim=150, evaluate__masks__per_size=200_000)


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmParent]:
    """Warm parent, started as a worker does."""
    parent = WarmParent()
    yield parent
    parent.close()


def records(runner: Runner) -> list[dict[str, Any]]:
    """All numbered records that it gives, to its end."""
    return [record for record in all_records(runner) if record["seq"] is not None]


def forked(warm: WarmParent) -> Runner:
    """One whose process is there."""
    runner = Runner(warm.fork)
    wait_until(lambda: runner.alive and runner.child.pid is not None)
    return runner


def test_a_child_gives_the_records_of_the_filter(warm: WarmParent, tmp_path: Path) -> None:
    undisturbed = [json.loads(line) for line in mptlab_contract.records(spec_of(SPEC), tmp_path)]
    for _ in range(2):
        runner = Runner(warm.fork)
        runner.start({"spec": SPEC})
        assert records(runner) == undisturbed
        assert runner.kill() == 0


@pytest.mark.parametrize("start", ["forked", "spawned"])
def test_exit_status_and_stderr(warm: WarmParent, start: str) -> None:
    runner = Runner(warm.fork if start == "forked" else Spawned)
    runner.start({"spec": {}})
    assert records(runner) == []
    assert "/model: this field is required" in runner.stderr
    assert not runner.alive
    assert runner.kill() == 2


def test_a_child_is_ended_by_a_signal(warm: WarmParent) -> None:
    runner = Runner(warm.fork)
    runner.start({"spec": LONG})
    while runner.next_record() is None:
        runner.wait(0.1)
    runner.signal(signal.SIGTERM)
    records(runner)
    assert not runner.alive
    assert runner.kill() == -signal.SIGTERM


def test_a_crashed_child_exits_with_status_1_and_a_traceback(warm: WarmParent) -> None:
    runner = Runner(warm.fork)
    runner.start({"spec": SPEC, "environment": {"A=B": "no such name"}})
    assert records(runner) == []
    assert "Traceback" in runner.stderr
    assert "ValueError" in runner.stderr
    assert runner.kill() == 1


def test_the_parent_has_its_own_session(warm: WarmParent) -> None:
    """Ctrl-C at a terminal then reaches only the worker, which lets its run save."""
    assert os.getsid(warm._process.pid) == warm._process.pid


def test_a_killed_child_is_gone(warm: WarmParent) -> None:
    runner = forked(warm)
    pid = runner.child.pid
    assert pid is not None
    before = psutil.Process(pid)
    assert runner.kill() == -signal.SIGKILL
    wait_until(lambda: not before.is_running(), what="the end of its zombie")


def test_a_child_is_killed_before_it_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent does not read its requests yet, as while it imports torch."""
    monkeypatch.setattr(children, "CLOSE_S", 60.0)
    parent = SharedWarmParent()
    process = psutil.Process(parent._process.pid)
    process.suspend()
    runner = Runner(parent.fork)
    threading.Timer(0.2, process.resume).start()
    assert runner.kill() == -signal.SIGKILL
    after = Runner(parent.fork)
    after.start({"spec": SPEC})
    assert records(after) == undisturbed_records(SPEC)
    assert after.kill() == 0
    forks = process.children()
    wait_until(lambda: not any(fork.is_running() for fork in forks))
    process.kill()


def test_a_worker_that_is_gone_receives_nothing() -> None:
    """Neither of the errors that a closed socket raises ends the parent."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        _send(theirs, 7)
        assert NUMBER.unpack(ours.recv(100)) == (7,)
        theirs.send(b"unread")
        ours.close()
        _send(theirs, 8)  # the connection is reset, because of what was not read
        _send(theirs, 9)  # the pipe is broken


def test_runners_are_lost_if_the_parent_dies() -> None:
    parent = SharedWarmParent()
    runner = forked(parent)
    child = psutil.Process(runner.child.pid)
    runner.start({"spec": LONG})
    parent._process.kill()
    records(runner)
    assert runner.kill() == GONE
    wait_until(lambda: not child.is_running())
    assert not parent.alive


def test_a_parent_that_is_ending_counts_as_ended() -> None:
    """The kernel closes its sockets before the process has an exit status. A run that was forked
    from it in between could not start, and the worker would end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    with subprocess.Popen(["sleep", "60"]) as parent:
        runner = Forked(ours, parent)
        assert runner.poll() == GONE
        assert parent.poll() is not None
        runner.close()


PROGRAM = """
import sys, time
from worker.children import Spawned, WarmParent
from worker.runner import Runner
from worker.warm_parent import TRANSFORMERS, Forks, main
parent = WarmParent()
runner = Runner(parent.fork if sys.argv[1] == "forked" else Spawned)
while runner.alive and runner.child.pid is None:
    time.sleep(0.01)
print(runner.child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["forked", "spawned"])
def test_a_runner_dies_with_its_supervisor(start: str) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", PROGRAM, start], stdout=subprocess.PIPE)
    assert supervisor.stdout is not None
    runner = psutil.Process(int(supervisor.stdout.readline()))
    family = [runner, *psutil.Process(supervisor.pid).children(recursive=True)]
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    supervisor.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive


def test_the_parent_has_one_thread_and_no_open_file_of_a_runner(warm: WarmParent) -> None:
    runner = forked(warm)
    parent = psutil.Process(warm._process.pid)
    assert parent.num_threads() == 1
    open_files = parent.num_fds()
    runner.kill()
    again = forked(warm)
    assert parent.num_fds() == open_files
    child = psutil.Process(again.child.pid)
    wait_until(lambda: child.num_fds() == 3, 10, "a child that has closed what is the parent's")
    again.kill()
