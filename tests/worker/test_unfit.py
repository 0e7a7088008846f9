"""A worker's own defect fails no run: the run is handed back, and the worker ends or continues."""

import os
import selectors
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from service.db.engine import Database
from service.queue import lease
from service.settings import Settings
from tests.support.forks import SharedWarmParent
from tests.support.starting import run_next
from tests.support.stored import row
from tests.support.stub import all_records, started
from tests.worker.test_endings import claimed
from worker import children, spool, supervisor
from worker.children import WarmParent
from worker.fitness import UnfitWorker
from worker.runner import Runner
from worker.slot import Slot
from worker.supervisor import Supervision
from worker.warm_parent import Forks


def test_a_runner_that_never_was_ready_does_not_fail_the_run(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = (sys.executable, "-c", "raise ImportError('no torch')")
    monkeypatch.setattr(Slot, "new_runner", lambda self: started(*broken))
    claim = claimed(database)
    with database.transaction() as session:
        lease.release(session, claim)
    slot = Slot(database, settings, "test")
    with pytest.raises(UnfitWorker):
        run_next(slot)
    slot.close()
    waiting = row(database, claim.experiment_id)
    assert (waiting.status, waiting.lost, waiting.failure_kind) == ("queued", 0, None)


def test_a_worker_without_torch_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('a broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    parent = WarmParent()
    assert not parent.wait_until_ready(lambda: False)
    runner = Runner(parent.fork)  # which finds no process
    assert all_records(runner) == []
    assert not runner.ready
    runner.kill()
    parent.close()


def test_a_stopping_worker_does_not_wait_for_torch() -> None:
    parent = WarmParent()
    os.kill(parent._process.pid, signal.SIGSTOP)
    waiting = threading.Thread(target=parent.wait_until_ready, args=[lambda: True], daemon=True)
    waiting.start()
    waiting.join(30)
    assert not waiting.is_alive()
    parent.close()


def test_a_frozen_parent_does_not_block_its_slot(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "CLOSE_S", 0.3)
    monkeypatch.setattr(supervisor, "UNHEARD_S", 0.3)
    parent = SharedWarmParent()
    assert parent.wait_until_ready(lambda: False)
    os.kill(parent._process.pid, signal.SIGSTOP)
    claim = claimed(database, compute__max_runtime_s=1)
    ended = Supervision(database, settings, claim, Runner(parent.fork)).run(lambda: False)
    assert (ended, row(database, claim.experiment_id).failure_kind) == ("failed", "timeout")
    assert not parent.alive


def test_an_unregistered_pipe_gets_no_event_in_the_same_round() -> None:
    ours, theirs = socket.socketpair()
    forks = Forks(ours)
    calls = []
    pairs = [socket.socketpair() for _ in range(2)]

    def forget_the_other(own: int) -> None:
        calls.append(own)
        forks._selector.unregister(pairs[1 - own][0])

    for i, (end, other) in enumerate(pairs):
        forks._selector.register(
            end,
            selectors.EVENT_READ,
            lambda i=i: forget_the_other(i),
        )
        other.send(b"x")
    forks.look()
    assert len(calls) == 1
    for one in (ours, theirs, *pairs[0], *pairs[1]):
        one.close()


def test_silence_is_measured_in_seconds(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not measured in polls, because complaints cause many of them."""
    code = "import sys, time\nfor _ in range(700): print('x', file=sys.stderr); time.sleep(0.002)"
    claim = claimed(database)
    runner = started(sys.executable, "-c", code)
    supervision = Supervision(database, settings, claim, runner)
    began = time.monotonic()
    while supervision._step():
        pass
    assert 0.5 < supervision._silent_s <= time.monotonic() - began
    runner.kill()


def test_lines_that_are_not_records_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "LINE_BYTES", 10_000)
    code = (
        "print('[' * 100_000); print('x' * 300_000, end='', flush=True);"
        'import time; time.sleep(0.3); print(); print(\'{"record": "log", "seq": 1}\')'
    )
    runner = started(sys.executable, "-c", code)
    assert all_records(runner) == [{"record": "log", "seq": 1}]
    runner.kill()


def test_a_process_that_outlives_its_runner_does_not_block_the_slot() -> None:
    child = "import time\\nfor _ in range(100): print('x', flush=True); time.sleep(0.05)"
    code = (
        "import subprocess, sys;"
        f"subprocess.Popen([sys.executable, '-c', '''{child}'''], start_new_session=True)"
    )
    runner = started(sys.executable, "-c", code)
    began = time.monotonic()
    assert all_records(runner) == []
    assert time.monotonic() - began < 4
    assert runner.kill() == 0
