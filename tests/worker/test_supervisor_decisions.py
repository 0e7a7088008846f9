"""Decisions of a supervisor over time, with a clock that only the tests advance."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DataError, OperationalError

from service.datasets.child_environment import hub_environment
from service.db.engine import Database
from service.experiments.models import Block
from service.queue import lease
from service.queue.lease import Claim
from service.records import recording
from service.vocabulary import DesiredState, Status
from tests.support.attempts import claim_next
from tests.support.scripted import (
    BEGAN,
    GRACE_S,
    HEARTBEAT_S,
    LIMIT_S,
    LOOK_S,
    STALL_S,
    Watch,
    checkpoint,
    points,
)
from tests.support.stored import change, status_events
from worker import supervisor
from worker.runner import Record


@contextmanager
def away(monkeypatch: pytest.MonkeyPatch, is_over: Callable[[], bool]) -> Iterator[None]:
    begin = Database.transaction

    def transaction(self: Database) -> Any:
        if not is_over():
            raise OperationalError("away", None, Exception())
        return begin(self)

    with monkeypatch.context() as patched:
        patched.setattr(Database, "transaction", transaction)
        yield


def test_the_order_of_a_first_attempt(watch: Watch, claim: Claim) -> None:
    ended, runner = watch.run()
    assert ended == "succeeded"
    store, id_ = watch.settings.store, claim.experiment_id
    assert runner.orders == [
        {
            "spec": claim.spec,
            "checkpoint_dir": str(store / "checkpoints" / id_ / "1"),
            "work_dir": str(store / "artifacts" / id_ / "1"),
            "resume": None,
            "inputs": {},
            "save_every_s": watch.settings.checkpoint_every_s,
            "environment": {},
        }
    ]


def test_only_a_run_that_may_download_gets_the_token_of_the_hub(
    watch: Watch, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert watch.run(status=3)[1].orders[0]["environment"] == {}
    watch.claim = claim_next(watch.database)
    model = {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"}
    watch.claim.spec.update(model=model, data={"source": "mnist", "n": 10})
    assert watch.run()[1].orders[0]["environment"] == hub_environment() != {}


def test_the_order_of_a_resumed_attempt(watch: Watch, claim: Claim, database: Database) -> None:
    looks = ([*points(1), checkpoint(1, "a")], [*points(2), checkpoint(2, "b")])
    assert watch.run(*looks, status=3)[0] == "unfinished"
    watch.claim = claim_next(database)
    _, runner = watch.run()
    folder = watch.settings.store / "checkpoints" / claim.experiment_id
    assert runner.orders[0]["resume"] == {
        "files": [str(folder / "1" / "b"), str(folder / "1" / "a")],
        "after": 2,
    }
    assert runner.orders[0]["checkpoint_dir"] == str(folder / "2")


def gaps(watch: Watch) -> list[float]:
    """Seconds between commits, and before the first of them."""
    return [later - early for early, later in pairwise([0.0, *(when for when, _ in watch.commits)])]


def test_records_are_committed_a_few_times_a_second(watch: Watch) -> None:
    watch.run(*(points(seq) for seq in range(1, 41)))
    assert max(gaps(watch)) <= supervisor.FLUSH_S + LOOK_S / 2
    assert len(watch.commits) < 40 / 3
    assert sum(size for _, size in watch.commits) == watch.found.last_seq == 40


def test_without_records_the_lease_is_renewed_at_every_heartbeat(watch: Watch) -> None:
    change(watch.database, watch.claim.experiment_id, lease_expires_at=1.0)
    watch.run(*[[]] * 40)
    assert max(gaps(watch)) <= HEARTBEAT_S + LOOK_S / 2
    assert {size for _, size in watch.commits} == {0}
    assert watch.commits[-1][0] > 1


PROGRESS = {**checkpoint(0, ""), "record": "progress", "done": 1, "total": 9, "unit": "masks"}
ENVIRONMENT = {"seq": None, "record": "environment", "core": "a"}
LOG = {"seq": 1, "record": "log", "level": "info", "message": "a"}

METRIC = {"seq": 1, "record": "metric", "name": "a", "labels": {}, "value": 1.0, "std_err": None}
ARTIFACT = {"seq": 1, "record": "artifact", "file": "a", "media_type": "b", "sha256": "0"}
RESTART = {"seq": None, "record": "restart"}


@pytest.mark.parametrize(
    "other", [*points(1), LOG, METRIC, ARTIFACT, ENVIRONMENT, checkpoint(0, "a"), RESTART]
)
def test_progress_alone_is_committed_twice_a_second(watch: Watch, other: Record) -> None:
    """Everything else is committed sooner."""
    progress = [[PROGRESS] for _ in range(17)]  # a commit at the first, the ninth, the last
    watch.run(*progress, [other], *[[PROGRESS] for _ in range(5)])
    first, *rare, soon = gaps(watch)[:4]
    assert first == LOOK_S
    assert rare == pytest.approx([supervisor.PROGRESS_S] * 2)
    assert LOOK_S <= soon <= supervisor.FLUSH_S


def test_a_checkpoint_closes_its_batch(watch: Watch) -> None:
    records = [*points(1, 2), checkpoint(2, "a"), *points(3), checkpoint(3, "b"), *points(4)]
    _, runner = watch.run(records)
    assert [size for _, size in watch.commits] == [3, 2, 1]
    assert runner.checkpoints == ["a", "b"]


def test_a_block_ends_where_a_snapshot_was_taken(watch: Watch) -> None:
    """The checkpoint comes later: a run that resumes from it has the records up to there, and no
    others."""
    snapshot = {"seq": None, "record": "snapshot", "after": 2}
    records = [*points(1, 2), snapshot, *points(3, 4), checkpoint(2, "a"), *points(5)]
    outcome, _ = watch.run(records, status=-signal.SIGKILL)
    assert outcome == "lost"
    assert claim_next(watch.database).after_seq == 2
    with watch.database.snapshot() as session:
        assert sorted(session.scalars(select(Block.last_seq))) == [1, 2]  # of two series


def progress(done: int) -> dict[str, Any]:
    return {"seq": None, "record": "progress", "done": done, "total": 20, "unit": "masks"}


def test_the_end_is_estimated_from_the_time_between_progress_records(watch: Watch) -> None:
    """The time before the first report, which includes loading, does not count."""
    loading: list[Any] = [()] * 40
    pieces = [look for done in range(1, 6) for look in ([progress(done)], *[()] * 7)]
    watch.run(*loading, *pieces)
    assert watch.found.progress_eta_s == pytest.approx(15 * 8 * LOOK_S)


def test_a_restarted_run_has_its_own_pace(watch: Watch) -> None:
    pieces = [look for done in range(1, 6) for look in ([progress(done)], *[()] * 7)]
    watch.run(*pieces, [{"seq": None, "record": "restart"}, progress(1)])
    assert (watch.found.progress_done, watch.found.progress_eta_s) == (1, None)


@pytest.mark.parametrize("looks", [0, 3])
def test_many_records_are_committed_at_once_in_bounded_batches(
    watch: Watch, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full batches do not wait, and after the end of the run the last one does not either."""
    monkeypatch.setattr(recording, "BATCH_RECORDS", 3)
    watch.run(points(*range(1, 12)), *[[]] * looks)
    times, sizes = zip(*watch.commits, strict=True)
    assert max(sizes) == 3
    assert sum(sizes) == watch.found.last_seq == 11
    assert set(times[:3] if looks else times) == {LOOK_S}


def test_after_the_end_a_refusal_is_reported_at_once(watch: Watch) -> None:
    assert watch.run([], points(2**70))[0] == "failed"
    assert watch.clock.now == BEGAN + 2 * LOOK_S


def kept(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.glob("*/*")}


def test_usable_checkpoint_files_are_not_deleted(watch: Watch, claim: Claim) -> None:
    """Only the two that the database names, and those that this attempt saved after them."""
    folder = watch.settings.store / "checkpoints" / claim.experiment_id
    for name in ("0/z", "1/a", "1/b", "1/c", "1/d", "2/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    watch.run([*(checkpoint(0, file) for file in ("a", "b", "c"))])
    assert kept(folder) == {"1/b", "1/c", "1/d"}


def test_a_run_that_is_over_its_time_is_ended_at_once(watch: Watch) -> None:
    looks = [points(seq) for seq in range(1, 500)]
    ended, runner = watch.run(*looks, status=None)
    assert ended == "failed"
    kind, message = watch.failure
    assert kind == "timeout"
    assert "raise compute.max_runtime_s" in (message or "")
    (first, number), *_ = runner.heard
    assert (first, number) == (LIMIT_S + LOOK_S, signal.SIGKILL)


def test_a_run_that_falls_silent_is_ended_at_once(watch: Watch) -> None:
    ended, runner = watch.run(points(1), *[[]] * 8, points(2), status=None)
    assert ended == "failed"
    assert watch.failure[0] == "timeout"
    (first, number), *_ = runner.heard
    assert (first, number) == (10 * LOOK_S + STALL_S + LOOK_S, signal.SIGKILL)


def test_a_short_silence_is_allowed(watch: Watch) -> None:
    silent: list[Any] = [[]] * round(STALL_S / LOOK_S)
    assert watch.run(points(1), *silent, points(2), *silent, points(3))[0] == "succeeded"


def test_a_run_over_its_memory_is_ended_at_once(watch: Watch) -> None:
    watch.settings = watch.settings.model_copy(update={"run_memory_bytes": 2**20})
    ended, runner = watch.run(points(1), points(2), status=None,
                            child=type("Me", (), {"pid": os.getpid()}))  # fmt: skip
    assert ended == "failed"
    kind, message = watch.failure
    assert kind == "oom"
    assert "lower data.n, per_size or latent_dim" in (message or "")
    assert runner.heard[0] == (LOOK_S, signal.SIGKILL)


def desire(watch: Watch, desired: DesiredState) -> None:
    change(watch.database, watch.claim.experiment_id, desired_state=desired)


def test_a_cancel_is_a_sigterm_and_after_its_grace_a_sigkill(watch: Watch) -> None:
    desire(watch, DesiredState.CANCEL)
    watch.settings = watch.settings.model_copy(update={"stall_s": 60.0})
    ended, runner = watch.run(status=None)
    assert (ended, watch.found.status) == ("cancelled", "cancelled")
    assert runner.heard[:2] == [(LOOK_S, signal.SIGTERM), (LOOK_S + GRACE_S, signal.SIGKILL)]


def test_a_cancelled_run_ends_by_itself(watch: Watch) -> None:
    desire(watch, DesiredState.CANCEL)
    ended, runner = watch.run([], points(1), [], status=0)
    assert ended == "cancelled"
    assert signal.SIGKILL not in [what for _, what in runner.heard]
    assert watch.found.last_seq == 1


def test_a_hanging_warm_parent_is_ended(watch: Watch) -> None:
    """A warm parent that hangs: after a while it is ended as well."""
    desire(watch, DesiredState.CANCEL)
    ended, runner = watch.run(status=None, heeds_sigkill=False)
    assert ended == "cancelled"
    killed = [when for when, what in runner.heard if what == "kill"]
    assert killed[0] == LOOK_S + GRACE_S + supervisor.UNHEARD_S
    unheard = [when for when, what in runner.heard if what == signal.SIGKILL]
    assert unheard[0] == LOOK_S + GRACE_S


@pytest.mark.parametrize("why", ["pause", "stopping"])
@pytest.mark.parametrize(("status", "ends"), [(3, "unfinished"), (0, "succeeded")])
def test_a_pause_or_a_stopping_worker_asks_for_a_checkpoint(
    watch: Watch, why: str, status: int, ends: str
) -> None:
    if why == "pause":
        desire(watch, DesiredState.PAUSE)
    ended, runner = watch.run([], [], [], status=status, is_stopping=lambda: why == "stopping")
    assert ended == ends
    assert runner.heard[0] == (LOOK_S, "stop")
    assert {signal.SIGTERM, signal.SIGKILL}.isdisjoint(what for _, what in runner.heard)
    goes_on = "paused" if why == "pause" else "queued"
    assert watch.found.status == (goes_on if ends == "unfinished" else ends)
    assert watch.found.lost == 0


@pytest.mark.parametrize("ready", [True, False])
def test_a_run_that_leaves_no_checkpoint_in_time_is_handed_back(watch: Watch, ready: bool) -> None:
    watch.settings = watch.settings.model_copy(update={"stall_s": 60.0})
    ended, runner = watch.run(status=None, ready=ready, is_stopping=lambda: True)
    assert ended == "unfinished"
    assert runner.heard[:2] == [(LOOK_S, "stop"), (LOOK_S + GRACE_S, signal.SIGKILL)]
    assert (watch.found.status, watch.found.lost) == ("queued", 0)


WAITS = {"seq": None, "record": "disk_full", "file": "rows.csv", "bytes": 12_345}


def attempt_again(watch: Watch) -> None:
    watch.claim = claim_next(watch.database)


def test_a_run_that_waits_for_space_is_handed_back_and_then_fails(watch: Watch) -> None:
    """It is not a loss. The reason is an event; the failure says how many bytes it needs."""
    for _ in range(3):
        ended, runner = watch.run([WAITS], status=None)
        assert ended == "disk_full"
        assert runner.heard[0][1] == signal.SIGKILL
        assert (watch.found.status, watch.found.lost) == ("queued", 0)
        event = status_events(watch.database, watch.claim.experiment_id)[-1]
        assert (event["status"], event["reason"]) == ("queued", "disk_full")
        attempt_again(watch)
    ended, _ = watch.run([WAITS], status=None)
    assert ended == "disk_full"
    assert (watch.found.status, watch.found.lost) == ("failed", 0)
    kind, message = watch.failure
    assert kind == "disk_full"
    assert message is not None
    assert "rows.csv" in message
    assert "12345 bytes" in message


def test_a_runner_that_meets_a_full_disk_is_handed_back(watch: Watch) -> None:
    """A library met it, which cannot wait for space."""
    failure = {"seq": 1, "record": "failure", "cause": "disk_full", "message": "no space"}
    ended, _ = watch.run([failure], status=1)
    assert (ended, watch.found.status, watch.found.lost) == ("disk_full", "queued", 0)


def test_a_silent_run_that_cannot_write_its_records_is_handed_back(watch: Watch) -> None:
    """It cannot report that. The wait is no run time."""

    def refuse() -> None:
        raise OSError(28, "No space left on device")

    watch.settings = watch.settings.model_copy(update={"stall_s": 4.0 * LIMIT_S})
    full = SimpleNamespace(size=0, check_space=refuse)
    ended, _ = watch.run(points(1), status=None, spool=full)
    assert (ended, watch.found.status, watch.found.lost) == ("disk_full", "queued", 0)
    attempt_again(watch)
    wait: list[list[Record]] = [[]] * int(2 * LIMIT_S / LOOK_S)
    ended, _ = watch.run(*wait, points(2), [], points(3), spool=full)
    assert (ended, watch.found.last_seq) == ("succeeded", 3)


def test_a_full_disk_is_noticed_long_before_a_limit(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise OSError(28, "No space left on device")

    watch.settings = watch.settings.model_copy(update={"stall_s": 60.0})
    wait: list[list[Record]] = [[]] * int(LIMIT_S / 2 / LOOK_S)
    full = SimpleNamespace(size=0, check_space=refuse)
    ended, _ = watch.run(points(1), *wait, points(2), spool=full)
    assert ended == "succeeded"
    assert "No space left on device" in caplog.text


def test_a_run_continues_when_there_is_space_again(watch: Watch) -> None:
    """The wait counts neither as silence nor as run time."""
    watch.settings = watch.settings.model_copy(update={"stall_s": 4.0 * LIMIT_S})
    wait: list[list[Record]] = [[]] * int(2 * LIMIT_S / LOOK_S)
    ended, _ = watch.run(points(1), [WAITS], *wait, points(2), [], points(3))
    assert (ended, watch.found.last_seq) == ("succeeded", 3)


def test_a_run_that_has_waited_for_space_has_its_time_limit(watch: Watch) -> None:
    watch.settings = watch.settings.model_copy(update={"stall_s": 4.0 * LIMIT_S})
    ended, _ = watch.run([WAITS], [], points(1), status=None)
    assert (ended, watch.failure[0]) == ("failed", "timeout")


@pytest.mark.parametrize(("desired", "ends"), [("cancel", "cancelled"), ("pause", "paused")])
def test_a_run_that_waits_for_space_obeys_its_owner(watch: Watch, desired: str, ends: str) -> None:
    watch.settings = watch.settings.model_copy(update={"stall_s": 60.0})
    desire(watch, DesiredState(desired))
    _, runner = watch.run([WAITS], status=None)
    assert watch.found.status == ends
    assert runner.heard[1] == (LOOK_S + GRACE_S, signal.SIGKILL)


def test_a_stopping_worker_hands_back_a_run_that_waits_for_space(watch: Watch) -> None:
    watch.settings = watch.settings.model_copy(update={"stall_s": 60.0})
    ended, _ = watch.run([WAITS], status=None, is_stopping=lambda: True)
    assert (ended, watch.found.status, watch.found.lost) == ("unfinished", "queued", 0)


SPOILED: list[tuple[dict[str, Any], str]] = [
    ({"seq": 3, "record": "point"}, "KeyError('series')"),
    ({"seq": 3, "record": "metric"}, "KeyError('name')"),
    ({"seq": None, "record": "progress", "done": 1, "total": 2**70, "unit": "x"}, "OverflowError"),
]


@pytest.mark.parametrize(("spoiled", "why"), SPOILED)
def test_no_record_is_stored_after_a_refused_record(
    watch: Watch, spoiled: dict[str, Any], why: str
) -> None:
    looks = [points(1), [], [], [], [spoiled, *points(4)], points(5), [], [], []]
    ended, runner = watch.run(*looks, status=None)
    assert ended == "failed"
    kind, message = watch.failure
    assert kind == "error"
    assert why in (message or "")
    assert watch.found.last_seq == 1
    assert signal.SIGKILL in [what for _, what in runner.heard]


@pytest.mark.parametrize(("spoiled", "why"), SPOILED)
def test_a_lease_is_renewed_until_a_refused_run_has_ended(
    watch: Watch, spoiled: dict[str, Any], why: str
) -> None:
    ended, _ = watch.run([spoiled], status=None, heeds_sigkill=False)
    assert ended == "failed"
    assert [size for _, size in watch.commits[-3:]] == [0, 0, 0]
    assert watch.commits[-1][0] > supervisor.UNHEARD_S - HEARTBEAT_S


def test_a_refusal_has_the_message_of_the_driver_without_the_statement(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and no more of them than a person reads."""

    def refuse(*_: Any) -> None:
        raise DataError("INSERT INTO blocks", {}, ValueError("out of range " + "x" * 2000))

    monkeypatch.setattr(supervisor, "record", refuse)
    ended, runner = watch.run(points(1), status=None)
    assert ended == "failed"
    _, message = watch.failure
    assert "out of range xxx" in (message or "")
    assert "INSERT" not in (message or "")
    assert len(message or "") <= 1000
    assert runner.heard[0] == (LOOK_S, signal.SIGKILL)


def test_a_checkpoint_is_kept_where_older_ones_cannot_be_deleted(
    watch: Watch, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses, or a database that is unreachable by then."""
    folder = watch.settings.store / "checkpoints" / claim.experiment_id / "0" / "a folder"
    folder.mkdir(parents=True)
    _, runner = watch.run([checkpoint(0, "a")], status=3)
    assert runner.checkpoints == ["a"]
    watch.claim = claim_next(watch.database)

    snapshots = iter([watch.database.snapshot()])

    def snapshot(self: Database) -> Any:
        for at_the_start in snapshots:
            return at_the_start
        raise OperationalError("away", None, Exception())

    with monkeypatch.context() as patched:
        patched.setattr(Database, "snapshot", snapshot)
        _, runner = watch.run([checkpoint(0, "b")])
    assert runner.checkpoints == ["b"]


@pytest.mark.parametrize("error", [OperationalError("away", None, Exception()), ValueError("no")])
def test_a_failure_to_merge_blocks_costs_no_run(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(supervisor, "compact", fail)
    looks = [[*points(seq), checkpoint(seq, str(seq))] for seq in range(1, 10)]
    outcome, runner = watch.run(*looks)
    assert (outcome, watch.found.last_seq) == ("succeeded", 9)
    assert len(runner.checkpoints) == 9


def test_a_worker_stops_although_the_database_is_away_before_its_run(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot(self: Database) -> Any:
        raise OperationalError("away", None, Exception())

    monkeypatch.setattr(Database, "snapshot", snapshot)
    outcome, _ = watch.run(is_stopping=lambda: watch.clock.now >= BEGAN + 3)
    assert outcome == "lease lost"


def test_the_run_continues_during_a_database_outage(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked at every heartbeat; then all that waited goes in, each record once."""
    tried: list[float] = []

    def is_over() -> bool:
        tried.append(watch.clock.now - BEGAN)
        return watch.clock.now >= BEGAN + 3

    with away(monkeypatch, is_over):
        ended, _ = watch.run(*(points(seq) for seq in range(1, 65)))
    assert ended == "succeeded"
    assert max(later - early for early, later in pairwise(tried)) <= HEARTBEAT_S
    assert watch.commits[0][0] <= 3 + HEARTBEAT_S
    assert sum(size for _, size in watch.commits) == watch.found.last_seq == 64


def test_the_outcome_waits_for_the_database(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    with away(monkeypatch, lambda: watch.clock.now >= BEGAN + 5):
        ended, runner = watch.run(points(1))
    assert (ended, watch.found.status, watch.found.last_seq) == ("succeeded", "succeeded", 1)
    assert signal.SIGKILL not in [what for _, what in runner.heard]
    assert watch.clock.now < BEGAN + 5 + 2 * HEARTBEAT_S


def test_records_wait_in_the_spool_while_the_database_is_away(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that may have been committed stays as it is, and nothing more is read. That is not
    silence of the run."""
    looks = (points(1, 2), points(3), points(4))
    with away(monkeypatch, lambda: watch.clock.now >= BEGAN + 3 * STALL_S):
        ended, _ = watch.run(*looks)
    assert (ended, watch.found.last_seq) == ("succeeded", 4)
    assert watch.commits[0] == (3 * STALL_S + LOOK_S, 2)


def test_a_run_whose_spool_grows_without_end_fails(watch: Watch) -> None:
    ended, _ = watch.run(
        points(1), status=None, spool=SimpleNamespace(size=2**40, check_space=lambda: None)
    )
    assert (ended, watch.failure[0]) == ("failed", "error")


@pytest.mark.parametrize("disturbance", ["time limit", "stop", "pause"])
def test_a_run_that_ended_while_the_database_was_away_keeps_its_end(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, disturbance: str
) -> None:
    """Its records wait longer than its time limit, or than the grace of a stopping worker."""
    stopping = watch.clock.now + 1
    if disturbance == "pause":
        desire(watch, DesiredState.PAUSE)
    long = 2.0 * LIMIT_S + GRACE_S + supervisor.UNHEARD_S
    with away(monkeypatch, lambda: not 0.5 < watch.clock.now - BEGAN < long):
        ended, _ = watch.run(
            *[points(seq) for seq in range(1, 20)],
            is_stopping=lambda: disturbance == "stop" and watch.clock.now > stopping,
        )
    assert watch.clock.now - BEGAN > long
    assert (ended, watch.found.last_seq) == ("succeeded", 19)


def test_records_of_a_run_that_is_ended_in_an_outage_are_stored(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not heed its kill for some time."""
    long = 2.0 * LIMIT_S
    with away(monkeypatch, lambda: not 0.5 < watch.clock.now - BEGAN < long):
        ended, _ = watch.run(
            *[points(seq) for seq in range(1, 20)], status=None, heeds_sigkill=False
        )
    assert (ended, watch.found.last_seq) == ("failed", 19)


def test_a_lost_lease_ends_the_runner_and_writes_nothing(watch: Watch) -> None:
    change(watch.database, watch.claim.experiment_id, attempt=2)
    ended, runner = watch.run(points(1), points(2), status=None)
    assert ended == "lease lost"
    assert "kill" in [what for _, what in runner.heard]
    assert (watch.found.status, watch.found.attempt, watch.found.last_seq) == ("running", 2, 0)


def test_a_lease_that_is_lost_before_the_outcome(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(*_: Any) -> None:
        raise lease.LeaseLost("gone")

    monkeypatch.setattr(lease, "finish", finish)
    assert watch.run(points(1))[0] == "lease lost"
    assert watch.found.status == Status.RUNNING
