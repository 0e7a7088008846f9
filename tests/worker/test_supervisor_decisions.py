"""Decisions of a supervisor over time, with a clock that only the tests advance."""

import math
import os
import signal
from itertools import pairwise
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
from tests.support.attempts import claim_next, claimed
from tests.support.ppca_spec import ppca_spec
from tests.support.scripted import (
    BEGAN,
    GRACE_S,
    HEARTBEAT_S,
    LIMIT_S,
    LOOK_S,
    STALL_S,
    Watch,
    checkpoint,
    desire,
    heard_s,
    points,
)
from tests.support.stored import change, status_events
from worker import supervisor
from worker.runner import Record

SOON_S = 1.0
"""Seconds within which a supervisor acts after it may."""
FULL_DISK = OSError(28, "No space left on device")


def longest_pause_s(watch: Watch) -> float:
    """Return the longest time without a commit. Each commit renews the lease."""
    times = [0.0, *(when for when, _ in watch.commits), watch.clock.now - BEGAN]
    return max(later - earlier for earlier, later in pairwise(times))


def claim_again(watch: Watch) -> None:
    watch.claim = claim_next(watch.database)


def change_settings(watch: Watch, **settings: Any) -> None:
    watch.settings = watch.settings.model_copy(update=settings)


# Orders


def test_the_orders_of_a_first_and_of_a_resumed_attempt(watch: Watch, claim: Claim) -> None:
    looks = ([*points(1), checkpoint(1, "a")], [*points(2), checkpoint(2, "b")])
    ended, runner = watch.run(*looks, status=3)
    assert ended == "unfinished"
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
    claim_again(watch)
    (order,) = watch.run()[1].orders
    folder = store / "checkpoints" / id_
    files = [str(folder / "1" / "b"), str(folder / "1" / "a")]
    assert order["resume"] == {"files": files, "after": 2}
    assert order["checkpoint_dir"] == str(folder / "2")


def test_only_a_run_that_may_download_gets_the_token_of_the_hub(
    watch: Watch, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert watch.run(status=3)[1].orders[0]["environment"] == {}
    claim_again(watch)
    model = {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"}
    watch.claim.spec.update(model=model, data={"source": "mnist", "n": 10})
    assert watch.run()[1].orders[0]["environment"] == hub_environment() != {}


# Commits


def test_records_are_committed_soon_and_many_together(watch: Watch) -> None:
    watch.run(*(points(seq) for seq in range(1, 41)))
    assert longest_pause_s(watch) < 2 * HEARTBEAT_S
    assert len(watch.commits) < 20
    assert sum(size for _, size in watch.commits) == watch.found.last_seq == 40


def test_without_records_the_lease_is_renewed_at_every_heartbeat(watch: Watch) -> None:
    watch.run(*[[]] * 60)
    assert longest_pause_s(watch) < 2 * HEARTBEAT_S


def test_progress_alone_is_committed_less_often_than_records(watch: Watch) -> None:
    watch.run(*[[progress(1)]] * 40)
    of_progress = len(watch.commits)
    assert longest_pause_s(watch) < HEARTBEAT_S
    watch.claim = claimed(watch.database)
    watch.run(*([progress(1), *points(seq)] for seq in range(1, 41)))
    assert of_progress < len(watch.commits) - of_progress


def test_each_checkpoint_is_acknowledged(watch: Watch) -> None:
    records = [*points(1, 2), checkpoint(2, "a"), *points(3), checkpoint(3, "b"), *points(4)]
    _, runner = watch.run(records)
    assert runner.checkpoints == ["a", "b"]
    assert watch.found.last_seq == 4


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


def test_many_records_are_committed_in_bounded_batches(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "BATCH_RECORDS", 3)
    watch.run(points(*range(1, 12)))
    sizes = [size for _, size in watch.commits]
    assert max(sizes) == 3
    assert sum(sizes) == watch.found.last_seq == 11


def test_usable_checkpoint_files_are_not_deleted(watch: Watch, claim: Claim) -> None:
    """Only the two that the database names, and those that this attempt saved after them."""
    folder = watch.settings.store / "checkpoints" / claim.experiment_id
    for name in ("0/z", "1/a", "1/b", "1/c", "1/d", "2/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    watch.run([*(checkpoint(0, file) for file in ("a", "b", "c"))])
    files = {str(file.relative_to(folder)) for file in folder.glob("*/*")}
    assert files == {"1/b", "1/c", "1/d"}


# Limits


def test_a_run_over_its_time_is_killed(watch: Watch) -> None:
    ended, runner = watch.run(*(points(seq) for seq in range(1, 500)), status=None)
    kind, message = watch.failure
    assert (ended, kind) == ("failed", "timeout")
    assert "raise compute.max_runtime_s" in (message or "")
    assert LIMIT_S <= heard_s(runner, signal.SIGKILL) <= LIMIT_S + SOON_S


def test_a_run_that_falls_silent_is_killed(watch: Watch) -> None:
    silence: list[Any] = [[]] * round(STALL_S / 2 / LOOK_S)
    ended, runner = watch.run(points(1), *silence, points(2), status=None)
    assert (ended, watch.failure[0]) == ("failed", "timeout")
    assert STALL_S * 1.5 <= heard_s(runner, signal.SIGKILL) <= STALL_S * 1.5 + SOON_S


def test_a_run_over_its_memory_is_killed(watch: Watch) -> None:
    change_settings(watch, run_memory_bytes=2**20)
    ended, runner = watch.run(points(1), status=None, child=SimpleNamespace(pid=os.getpid()))
    kind, message = watch.failure
    assert (ended, kind) == ("failed", "oom")
    assert "lower data.n, per_size or latent_dim" in (message or "")
    assert heard_s(runner, signal.SIGKILL) <= SOON_S


# Stops


@pytest.mark.parametrize("heeds_sigkill", [True, False])
def test_a_cancel_is_a_sigterm_and_after_its_grace_a_sigkill(
    watch: Watch, heeds_sigkill: bool
) -> None:
    """A warm parent that hangs, so that the kill is not heard of, is ended a while later."""
    desire(watch, DesiredState.CANCEL)
    change_settings(watch, stall_s=60.0)
    ended, runner = watch.run(status=None, heeds_sigkill=heeds_sigkill)
    assert (ended, watch.found.status) == ("cancelled", "cancelled")
    asked_s = heard_s(runner, signal.SIGTERM)
    killed_s = heard_s(runner, signal.SIGKILL)
    assert asked_s <= SOON_S
    assert asked_s + GRACE_S <= killed_s <= asked_s + GRACE_S + SOON_S
    if not heeds_sigkill:
        assert killed_s < heard_s(runner, "kill") < killed_s + GRACE_S


def test_a_cancelled_run_may_end_by_itself(watch: Watch) -> None:
    desire(watch, DesiredState.CANCEL)
    ended, runner = watch.run([], points(1), [], status=0)
    assert (ended, watch.found.last_seq) == ("cancelled", 1)
    assert heard_s(runner, signal.SIGKILL) == math.inf


@pytest.mark.parametrize("why", ["pause", "stopping"])
@pytest.mark.parametrize(("status", "ends"), [(3, "unfinished"), (0, "succeeded")])
def test_a_pause_or_a_stopping_worker_asks_for_a_checkpoint(
    watch: Watch, why: str, status: int, ends: str
) -> None:
    if why == "pause":
        desire(watch, DesiredState.PAUSE)
    ended, runner = watch.run([], [], [], status=status, is_stopping=lambda: why == "stopping")
    assert ended == ends
    assert heard_s(runner, "stop") <= SOON_S
    assert heard_s(runner, signal.SIGTERM) == heard_s(runner, signal.SIGKILL) == math.inf
    goes_on = "paused" if why == "pause" else "queued"
    assert watch.found.status == (goes_on if ends == "unfinished" else ends)
    assert watch.found.lost == 0


@pytest.mark.parametrize("ready", [True, False])
def test_a_run_that_leaves_no_checkpoint_in_time_is_handed_back(watch: Watch, ready: bool) -> None:
    change_settings(watch, stall_s=60.0)
    ended, runner = watch.run(status=None, ready=ready, is_stopping=lambda: True)
    assert ended == "unfinished"
    assert heard_s(runner, "stop") + GRACE_S <= heard_s(runner, signal.SIGKILL)
    assert (watch.found.status, watch.found.lost) == ("queued", 0)


# Giving way


def ask_to_give_way(watch: Watch, to: str | None) -> None:
    change(watch.database, watch.claim.experiment_id, gives_way_to=to)


def test_a_run_that_gives_way_has_all_the_time_it_needs_to_save(watch: Watch) -> None:
    ask_to_give_way(watch, "another")
    looks = [points(seq) for seq in range(1, int(2 * GRACE_S / LOOK_S))]
    ended, runner = watch.run(*looks, status=3)
    assert ended == "gave way"
    assert heard_s(runner, "stop") <= SOON_S
    assert heard_s(runner, signal.SIGTERM) == heard_s(runner, signal.SIGKILL) == math.inf
    assert (watch.found.status, watch.found.lost) == ("queued", 0)
    assert watch.found.last_seq == len(looks)


def test_a_run_that_ends_before_it_can_give_way_has_ended(watch: Watch) -> None:
    ask_to_give_way(watch, "another")
    assert watch.run(points(1), status=0)[0] == "succeeded"


def test_a_run_goes_on_if_it_need_not_give_way_any_more(watch: Watch) -> None:
    ask_to_give_way(watch, "another")

    def is_stopping() -> bool:
        if watch.clock.now > BEGAN + 4 * HEARTBEAT_S:
            ask_to_give_way(watch, None)
        return False

    looks = int(12 * HEARTBEAT_S / LOOK_S)
    ended, runner = watch.run(*[[progress(1)]] * looks, is_stopping=is_stopping)
    assert ended == "succeeded"
    assert heard_s(runner, "stop") < heard_s(runner, "go on") < math.inf


def test_a_stopping_worker_comes_before_giving_way(watch: Watch) -> None:
    """It hands back its run, which then resumes anywhere."""
    ask_to_give_way(watch, "another")
    ended, _ = watch.run([], [], status=3, is_stopping=lambda: True)
    assert ended == "unfinished"


# Full disks


WAITS = {"seq": None, "record": "disk_full", "file": "rows.csv", "bytes": 12_345}


def test_a_run_that_waits_for_space_is_handed_back_and_then_fails(watch: Watch) -> None:
    """It is not a loss. The reason is an event; the failure says how many bytes it needs."""
    for _ in range(supervisor.MAX_HANDED_BACK_FOR_SPACE):
        assert watch.run([WAITS], status=None)[0] == "disk_full"
        assert (watch.found.status, watch.found.lost) == ("queued", 0)
        event = status_events(watch.database, watch.claim.experiment_id)[-1]
        assert (event["status"], event["reason"]) == ("queued", "disk_full")
        claim_again(watch)
    assert watch.run([WAITS], status=None)[0] == "disk_full"
    assert (watch.found.status, watch.found.lost) == ("failed", 0)
    kind, message = watch.failure
    assert kind == "disk_full"
    assert "rows.csv" in (message or "")
    assert "12345 bytes" in (message or "")


def test_a_runner_that_meets_a_full_disk_is_handed_back(watch: Watch) -> None:
    """A library met it, which cannot wait for space."""
    failure = {"seq": 1, "record": "failure", "cause": "disk_full", "message": "no space"}
    ended, _ = watch.run([failure], status=1)
    assert (ended, watch.found.status, watch.found.lost) == ("disk_full", "queued", 0)


def full_spool() -> SimpleNamespace:
    def refuse() -> None:
        raise FULL_DISK

    return SimpleNamespace(size=0, check_space=refuse)


def test_a_silent_run_that_cannot_write_its_records_is_handed_back(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot report that itself."""
    ended, _ = watch.run(points(1), status=None, spool=full_spool())
    assert (ended, watch.found.status, watch.found.lost) == ("disk_full", "queued", 0)
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize("reports", [True, False])
def test_a_run_continues_when_there_is_space_again(watch: Watch, reports: bool) -> None:
    """The wait counts neither as silence nor as run time, which is limited afterwards."""
    change_settings(watch, stall_s=4.0 * LIMIT_S)
    spool = SimpleNamespace(size=0, check_space=lambda: None) if reports else full_spool()
    wait: list[list[Record]] = [[]] * int(2 * LIMIT_S / LOOK_S)
    looks = [[WAITS] if reports else [], *wait, points(1), [], points(2)]
    ended, _ = watch.run(*looks, spool=spool)
    assert (ended, watch.found.last_seq) == ("succeeded", 2)
    watch.claim = claimed(watch.database, ppca_spec(compute__max_runtime_s=LIMIT_S))
    ended, _ = watch.run([WAITS], [], points(1), status=None)
    assert (ended, watch.failure[0]) == ("failed", "timeout")


@pytest.mark.parametrize(
    ("desired", "status"), [("cancel", "cancelled"), ("pause", "paused"), ("run", "queued")]
)
def test_a_run_that_waits_for_space_obeys_its_owner_and_its_worker(
    watch: Watch, desired: str, status: str
) -> None:
    change_settings(watch, stall_s=60.0)
    desire(watch, DesiredState(desired))
    _, runner = watch.run([WAITS], status=None, is_stopping=lambda: desired == "run")
    assert (watch.found.status, watch.found.lost) == (status, 0)
    assert GRACE_S <= heard_s(runner, signal.SIGKILL) <= GRACE_S + SOON_S


# Records that cannot be stored


SPOILED: list[tuple[dict[str, Any], str]] = [
    ({"seq": 3, "record": "point"}, "KeyError('series')"),
    ({"seq": 3, "record": "metric"}, "KeyError('name')"),
    ({"seq": None, "record": "progress", "done": 1, "total": 2**70, "unit": "x"}, "OverflowError"),
]


@pytest.mark.parametrize(("spoiled", "why"), SPOILED)
@pytest.mark.parametrize("heeds_sigkill", [True, False])
def test_no_record_is_stored_after_a_refused_record(
    watch: Watch, spoiled: dict[str, Any], why: str, heeds_sigkill: bool
) -> None:
    """The lease is renewed until the run has ended."""
    looks = [points(1), *[[]] * 8, [spoiled, *points(4)], points(5), [], [], []]
    ended, runner = watch.run(*looks, status=None, heeds_sigkill=heeds_sigkill)
    kind, message = watch.failure
    assert (ended, kind) == ("failed", "error")
    assert why in (message or "")
    assert watch.found.last_seq == 1
    assert heard_s(runner, signal.SIGKILL) <= 9 * LOOK_S + SOON_S
    assert longest_pause_s(watch) < 2 * HEARTBEAT_S


def test_a_refusal_has_the_message_of_the_driver_without_the_statement(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no longer than a person reads."""

    def refuse(*_: Any) -> None:
        raise DataError("INSERT INTO blocks", {}, ValueError("out of range " + "x" * 2000))

    monkeypatch.setattr(supervisor, "record", refuse)
    ended, runner = watch.run(points(1), status=None)
    message = watch.failure[1] or ""
    assert ended == "failed"
    assert "out of range xxx" in message
    assert "INSERT" not in message
    assert len(message) <= 1000
    assert heard_s(runner, signal.SIGKILL) <= SOON_S


def test_a_checkpoint_is_kept_where_older_ones_cannot_be_deleted(
    watch: Watch, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses, or a database that is unreachable by then."""
    folder = watch.settings.store / "checkpoints" / claim.experiment_id / "0" / "a folder"
    folder.mkdir(parents=True)
    _, runner = watch.run([checkpoint(0, "a")], status=3)
    assert runner.checkpoints == ["a"]
    claim_again(watch)

    snapshots = iter([watch.database.snapshot()])

    def snapshot(self: Database) -> Any:
        for at_the_start in snapshots:
            return at_the_start
        raise OperationalError("away", None, Exception())

    with monkeypatch.context() as patched:
        patched.setattr(Database, "snapshot", snapshot)
        _, runner = watch.run([checkpoint(0, "b")])
    assert runner.checkpoints == ["b"]


# Lost leases


def test_a_lost_lease_ends_the_runner_and_writes_nothing(watch: Watch) -> None:
    change(watch.database, watch.claim.experiment_id, attempt=2)
    ended, runner = watch.run(points(1), points(2), status=None)
    assert ended == "lease lost"
    assert heard_s(runner, "kill") < math.inf
    assert (watch.found.status, watch.found.attempt, watch.found.last_seq) == ("running", 2, 0)


def test_a_lease_that_is_lost_before_the_outcome(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(*_: Any) -> None:
        raise lease.LeaseLost("gone")

    monkeypatch.setattr(lease, "finish", finish)
    assert watch.run(points(1))[0] == "lease lost"
    assert watch.found.status == Status.RUNNING


def test_a_run_that_cannot_write_its_records_says_why_it_waits(watch: Watch) -> None:
    def refuse() -> None:
        raise OSError(28, "No space left on device")

    watch.settings = watch.settings.model_copy(update={"stall_s": 4.0 * LIMIT_S})
    watch.run(points(1), status=None, spool=SimpleNamespace(size=0, check_space=refuse))
    event = status_events(watch.database, watch.claim.experiment_id)[-1]
    assert "No space left on device" in event["message"]
