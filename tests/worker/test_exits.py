"""Outcomes that a supervisor derives from the end of its runner."""

import itertools
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from service.experiments.models import Attempt, Queue
from service.queue import lease, quota, workers
from service.queue.workers import Vitals
from service.records import results
from tests.support.attempts import claim_next, submitted
from tests.support.scripted import Watch, checkpoint, points
from tests.support.stored import change, status_events
from worker import supervisor
from worker.children import GONE


def failure(cause: str) -> dict[str, Any]:
    return {"seq": None, "record": "failure", "cause": cause, "message": "why"}


EXITS: list[tuple[dict[str, Any], list[Any], str, str, tuple[str | None, str | None]]] = [
    ({"status": 0}, [], "succeeded", "succeeded", (None, None)),
    ({"status": 3}, [], "unfinished", "queued", (None, None)),
    ({"status": 1}, [failure("error")], "failed", "failed", ("error", "why")),
    ({"status": 1}, [failure("no_gpu")], "worker unfit", "queued", (None, None)),
    ({"status": 1, "ready": False}, [failure("error")], "failed", "failed", ("error", "why")),
    ({"status": 1, "ready": False}, [], "worker unfit", "queued", (None, None)),
    ({"status": 1}, [], "failed", "failed", ("error", "the runner ended with status 1")),
    ({"status": 2, "stderr": "model: no"}, [], "failed", "failed", ("invalid", "model: no")),
    ({"status": -6, "stderr": "x" + "y" * 4000}, [], "failed", "failed", ("error", "y" * 4000)),
]


@pytest.mark.parametrize(("how", "records", "ended", "status", "why"), EXITS)
def test_the_outcome_follows_the_exit_status(
    watch: Watch, how: dict[str, Any], records: list[Any], ended: str, status: str, why: Any
) -> None:
    assert watch.run([*points(1), *records], **how)[0] == ended
    assert (watch.found.status, watch.failure) == (status, why)
    assert (watch.found.last_seq, watch.found.lost) == (1, 0)


def end(count: object) -> dict[str, Any]:
    return {"seq": None, "record": "end", "count": count}


RESTART = {"seq": None, "record": "restart"}
INCOMPLETE: list[tuple[list[Any], str]] = [
    ([], "it ended after 0 records without its final record"),
    (points(1, 2), "it ended after 2 records without its final record"),
    ([*points(1, 3), end(3)], "2 of its 3 records arrived"),
    ([*points(1, 2), end(1)], "2 of its 1 records arrived"),
    ([*points(1, 2), RESTART, *points(1), end(3)], "1 of its 3 records arrived"),
    ([*points(1), {**end(1), "seq": 2}, *points(2)], "2 of its 1 records arrived"),
]


@pytest.mark.parametrize(("records", "why"), INCOMPLETE)
def test_an_exit_status_of_0_without_all_records_is_a_crash(
    watch: Watch, records: list[Any], why: str
) -> None:
    assert watch.run(records, is_complete=False)[0] == "failed"
    assert watch.found.status == "failed"
    assert watch.failure == ("error", f"the runner crashed: {why}")


def test_a_resumed_run_counts_the_records_of_earlier_attempts(watch: Watch) -> None:
    assert watch.run([*points(1), checkpoint(1, "a")], status=3)[0] == "unfinished"
    watch.claim = claim_next(watch.database)
    assert watch.run([*points(2), end(2)], is_complete=False)[0] == "succeeded"


@pytest.mark.parametrize("kind", ["failure", "memory", "end", "progress", "point"])
def test_a_malformed_record_fails_its_run(watch: Watch, kind: str) -> None:
    """It does not end the worker."""
    assert watch.run([*points(1), {"record": kind}], is_complete=False)[0] == "failed"
    assert "a record of the run cannot be stored" in (watch.failure[1] or "")


def test_out_of_memory_is_reported_with_the_peak(watch: Watch) -> None:
    assert watch.run([failure("oom")], status=1)[0] == "failed"
    kind, message = watch.failure
    assert kind == "oom"
    assert "why; peak" in (message or "")


@pytest.mark.parametrize(("lost", "becomes"), [(0, "queued"), (3, "failed")])
def test_a_run_whose_gpu_failed_is_tried_again_a_few_times(
    watch: Watch, lost: int, becomes: str
) -> None:
    """It may be the cause: a kernel's assertion leaves its process without a GPU too."""
    change(watch.database, watch.claim.experiment_id, lost=lost)
    assert watch.run([*points(1), failure("device")], status=1)[0] == "GPU failed"
    assert (watch.found.status, watch.found.lost) == (becomes, lost + 1)


@pytest.mark.parametrize("status", [GONE, -signal.SIGKILL, -signal.SIGTERM])
@pytest.mark.parametrize(("lost", "becomes"), [(0, "queued"), (3, "failed")])
def test_a_runner_that_was_killed_is_lost(
    watch: Watch, status: int, lost: int, becomes: str
) -> None:
    change(watch.database, watch.claim.experiment_id, lost=lost)
    assert watch.run(points(1), status=status)[0] == "lost"
    assert (watch.found.status, watch.found.lost) == (becomes, lost + 1)


@pytest.mark.parametrize(
    ("status", "counts", "ended"),
    [
        (-signal.SIGKILL, [5, 6], "killed for memory"),
        (-signal.SIGKILL, [5, 5], "lost"),
        (-signal.SIGTERM, [5, 6], "lost"),
    ],
)
def test_only_a_kill_that_the_kernel_counts_is_out_of_memory(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, status: int, counts: list[int], ended: str
) -> None:
    monkeypatch.setattr(supervisor, "kernel_kills", lambda: counts.pop(0))
    assert watch.run(points(1), status=status)[0] == ended
    kind, message = watch.failure
    assert kind == ("oom" if ended == "killed for memory" else None)
    assert ("out of memory" in (message or "")) == (kind == "oom")


def test_a_run_killed_for_memory_beside_others_is_handed_back_once(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run in the same memory may be the cause. At the second kill it fails, and the message
    names the other run."""
    counts = itertools.count()
    monkeypatch.setattr(supervisor, "kernel_kills", lambda: next(counts))
    pools = [{"id": "m", "total": 2**32, "free": 2**31}]
    for name in ("other", "w"):
        with watch.database.transaction() as session:
            vitals = Vitals(name, Queue.CPU, 2**31, memory_pools=pools)
            workers.beat(session, name, vitals)
    submitted(watch.database)
    claim_next(watch.database, worker="other")
    me = type("Me", (), {"pid": os.getpid()})
    watch.run(points(1), status=-signal.SIGKILL, child=me)
    assert (watch.found.status, watch.found.lost, watch.failure) == ("queued", 0, (None, None))
    event = status_events(watch.database, watch.claim.experiment_id)[-1]
    assert event["reason"] == "memory"
    assert watch.found.memory_bytes == peak_bytes(watch), "it was expected to need less"
    watch.claim = claim_next(watch.database)
    watch.run(points(1), status=-signal.SIGKILL)
    kind, message = watch.failure
    assert (watch.found.status, kind) == ("failed", "oom")
    assert "peak 0.00 GiB" in (message or "")
    assert "while 1 other run of this service used the same memory" in (message or "")


def peak_bytes(watch: Watch) -> int | None:
    with watch.database.snapshot() as session:
        return session.get_one(Attempt, (watch.claim.experiment_id, 1)).peak_bytes


def test_a_run_killed_after_its_grace_was_not_killed_for_memory(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel killed another process during the run. Then its worker stopped, and the run was
    too slow."""
    counts = itertools.count()
    monkeypatch.setattr(supervisor, "kernel_kills", lambda: next(counts))
    watch.settings = watch.settings.model_copy(update={"stall_s": 60.0})
    ended, _ = watch.run(points(1), status=None, is_stopping=lambda: True)
    assert (ended, watch.found.status, watch.failure) == ("unfinished", "queued", (None, None))


MEMORY = [{"seq": None, "record": "memory", "device_bytes": size} for size in (5, 7)]


@pytest.mark.parametrize("status", [0, 1, 3, GONE])
def test_the_peak_is_kept_for_every_outcome(watch: Watch, status: int) -> None:
    """On a GPU by the latest word of its runner."""
    watch.claim = replace(watch.claim, queue=Queue.GPU)
    watch.run(MEMORY, status=status)
    assert peak_bytes(watch) == 7


def test_the_peak_on_a_cpu_is_of_main_memory(watch: Watch) -> None:
    watch.run(MEMORY, [], child=type("Me", (), {"pid": os.getpid()}))
    assert (peak_bytes(watch) or 0) > 2**20


def test_a_run_that_writes_too_much_is_ended(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor has its own limit, independent of the runner's code."""
    monkeypatch.setattr(supervisor, "OTHER_RECORDS", 2)
    limits = watch.settings.limits.model_copy(update={"points": 3})
    watch.settings = watch.settings.model_copy(update={"limits": limits})
    assert watch.run(points(1), points(*range(2, 7)), [], status=None)[0] == "failed"
    kind, message = watch.failure
    assert (kind, watch.found.last_seq) == ("error", 1)
    assert "more than 3 points (MPT_LIMITS__POINTS)" in (message or "")


def test_the_sizes_of_artifacts_and_checkpoints_are_measured(watch: Watch) -> None:
    """The user keeps a checkpoint until the experiment ends. A missing file has no size."""
    with watch.database.snapshot() as session:
        before = quota.kept(session, 1)
    artifacts = watch.settings.artifacts(watch.claim.experiment_id, 1)
    checkpoints = watch.settings.checkpoints(watch.claim.experiment_id) / "1"
    for file in (artifacts / "there", checkpoints / "a"):
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(77))
    line = {"record": "artifact", "media_type": "x", "sha256": "0"}
    files = [{**line, "seq": 1, "file": "there"}, {**line, "seq": 2, "file": "missing"}]
    assert watch.run([*files, checkpoint(2, "a")], status=3)[0] == "unfinished"
    with watch.database.snapshot() as session:
        stored = results.artifacts(session, watch.claim.experiment_id)
        assert {row.file: row.bytes for row in stored} == {"there": 77, "missing": None}
        (latest,) = lease.checkpoints(session, watch.claim.experiment_id)
        assert latest.bytes == 77
        assert quota.kept(session, 1) == before + 77


def test_the_peak_of_a_run_that_a_full_disk_ends(watch: Watch) -> None:
    watch.claim = replace(watch.claim, queue=Queue.GPU)
    failure = {"seq": 1, "record": "failure", "cause": "disk_full", "message": "no space"}
    watch.run([*MEMORY, failure], status=1)
    assert peak_bytes(watch) == 7
