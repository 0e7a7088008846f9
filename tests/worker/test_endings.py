"""A run that the supervisor ends fails at its first attempt, and keeps all records before its
end."""

import gc
import json
import os
import threading
import time
from typing import Any

import pytest

from service.db.engine import Database
from service.queue import states
from service.queue.lease import Claim
from service.records.curves import read_series
from service.settings import Settings
from service.vocabulary import DesiredState
from tests.support import attempts
from tests.support.invariants import check
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until
from tests.support.records import RECORDS
from tests.support.stored import row
from tests.support.stub import all_records, stub
from worker.children import Spawned
from worker.runner import STDERR_BYTES, Runner
from worker.supervisor import Supervision

QUICK = {"lease_s": 1.0, "kill_grace_s": 0.4}


def claimed(database: Database, **changes: object) -> Claim:
    return attempts.claimed(database, ppca_spec(**changes), lease_s=1.0)


def supervise(
    database: Database, settings: Settings, claim: Claim, *options: str, **changes: Any
) -> str:
    settings = settings.model_copy(update={**QUICK, **changes})
    runner = stub(*options)
    return Supervision(database, settings, claim, runner).run(lambda: False)


def ask(database: Database, claim: Claim, desired: DesiredState | None) -> None:
    """Once the run has begun to report."""
    if desired is None:
        return
    wait_until(lambda: row(database, claim.experiment_id).last_seq > 0)
    with database.transaction() as session:
        states.request(session, claim.experiment_id, desired)


def numbers(database: Database, claim: Claim) -> list[float]:
    """Every x that is stored, which is its record's number."""
    with database.snapshot() as session:
        found = read_series(session, claim.experiment_id, max_points=10_000_000)
    return sorted(x for series in found for x in series.x)


@pytest.mark.parametrize(
    ("desired", "outcome", "kind"),
    [(None, "failed", "timeout"), (DesiredState.CANCEL, "cancelled", None)],
)
def test_a_run_that_writes_without_end_is_ended(
    database: Database,
    settings: Settings,
    desired: DesiredState | None,
    outcome: str,
    kind: str | None,
) -> None:
    """It ignores SIGTERM, and has records pending at any time."""
    claim = claimed(database, compute__max_runtime_s=60 if desired else 1)
    beside = threading.Thread(target=ask, args=[database, claim, desired])
    beside.start()
    assert supervise(database, settings, claim, "--flood") == outcome
    beside.join()
    ended = row(database, claim.experiment_id)
    assert (ended.status, ended.failure_kind) == (outcome, kind)
    assert (ended.attempt, ended.lost) == (1, 0)
    assert ended.last_seq > 0
    assert numbers(database, claim) == list(range(1, ended.last_seq + 1))


def test_a_cancelled_run_has_its_grace(database: Database, settings: Settings) -> None:
    """Records written within the grace period are kept."""
    claim = claimed(database)
    beside = threading.Thread(target=ask, args=[database, claim, DesiredState.CANCEL])
    beside.start()
    assert supervise(database, settings, claim, "--polite", kill_grace_s=30.0) == "cancelled"
    beside.join()
    assert numbers(database, claim) == [1, 2]


def test_the_lease_is_renewed_while_a_long_order_is_not_read(
    database: Database, settings: Settings
) -> None:
    """The runner still imports torch, and the order is larger than a pipe."""
    claim = claimed(database)
    claim.spec["lines"] = ["x" * 1000] * 200
    leases = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            leases.add(row(database, claim.experiment_id).lease_expires_at)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert supervise(database, settings, claim, "--deaf") == "succeeded"
    finally:
        over.set()
        watcher.join()
    assert len(leases) > 5
    assert row(database, claim.experiment_id).attempt == 1


def test_a_record_that_cannot_be_stored_fails_the_run(
    either: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker does not fail, or it would run it up to max_lost times. Earlier records are
    kept."""
    claim = claimed(either)
    next_record = Runner.next_record

    def with_a_monster(self: Runner) -> Any:
        record = next_record(self)
        if record is None or record["seq"] != 9:
            return record
        return {"seq": None, "record": "progress", "done": 1, "total": 2**70, "unit": "x"}

    monkeypatch.setattr(Runner, "next_record", with_a_monster)
    assert supervise(either, settings, claim, "--slow") == "failed"
    ended = row(either, claim.experiment_id)
    assert (ended.status, ended.failure_kind, ended.attempt) == ("failed", "error", 1)
    assert "cannot be stored" in (ended.failure_message or "")
    assert 7 <= ended.last_seq < 9
    counts = check(either, {claim.experiment_id: RECORDS})
    assert counts.clean, str(counts)


def test_a_killed_run_leaves_no_process() -> None:
    """The run has unread output; no thread, open file or record is left."""
    gc.collect()  # processes left by other tests
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    runner = stub("--flood")
    runner.start({"resume": None})
    while runner.next_record() is None:
        runner.wait(0.1)
    time.sleep(0.2)
    runner.kill()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    runner.wait(0.1)
    assert runner.next_record() is None
    runner.acknowledge_checkpoint("a")  # which finds no process
    assert runner.kill() == -9


def test_orders_are_lines_of_json() -> None:
    """A process that only repeats them."""
    runner = Runner(lambda stdio: Spawned(stdio, ("cat",)))
    runner.start({"spec": {}})
    runner.acknowledge_checkpoint("a")
    runner.request_stop()
    while len(runner.stderr.splitlines()) < 3:
        runner.wait(0.1)
        assert runner.next_record() is None
    assert [json.loads(line) for line in runner.stderr.splitlines()] == [
        {"spec": {}},
        {"checkpoint": "a"},
        {"stop": "checkpoint"},
    ]
    runner.kill()


def last_words(script: str) -> tuple[list[Any], str]:
    """The records of a shell script, and what else it wrote."""
    runner = Runner(lambda stdio: Spawned(stdio, ("sh", "-c", script)))
    records = all_records(runner)
    assert runner.kill() == 0
    return records, runner.stderr


def test_a_line_that_is_no_record_counts_as_stderr() -> None:
    record = '{"record": "log"}'
    assert last_words(f"echo [1]; echo '{record}'; echo 2") == ([{"record": "log"}], "[1]\n2")


def test_the_end_of_stderr_is_kept() -> None:
    records, words = last_words(f"yes x | head -c {2 * STDERR_BYTES} >&2; echo bye >&2")
    assert records == []
    assert words.endswith("x\nx\nbye")
    assert len(words) <= STDERR_BYTES


def test_a_runner_that_cannot_be_started_leaves_no_open_file() -> None:
    def fail(stdio: object) -> Spawned:
        raise OSError("out of processes")

    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="out of processes"):
        Runner(fail)
    assert os.listdir("/proc/self/fd") == before
