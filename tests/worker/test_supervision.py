"""What a supervisor does when, by a clock that stands still between two looks at the runner."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from service.database import Database
from service.experiments import lease, recording
from service.experiments.lease import Claim
from service.experiments.models import DesiredState, Experiment, Status
from service.settings import Settings
from tests.support.attempts import claim_next, claimed
from tests.support.ppca_spec import ppca_spec
from tests.support.records import point
from tests.support.scripted import Clock, ScriptedRunner
from tests.support.stored import change, row
from worker import supervisor
from worker.children import GONE
from worker.runner import Runner
from worker.supervisor import Supervision

LOOK_S = 0.0625
"""Powers of two: sums of them are exact."""
HEARTBEAT_S = 1.0
GRACE_S = 8.0
STALL_S = 4.0
LIMIT_S = 16
BEGAN = 1024.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(supervisor, "FLUSH_S", 4 * LOOK_S)
    monkeypatch.setattr(supervisor, "READ_S", LOOK_S)
    return clock


@pytest.fixture
def claim(database: Database) -> Claim:
    return claimed(database, ppca_spec(compute__max_runtime_s=LIMIT_S))


class Lab:
    """A supervision of a scripted runner; each commit's time and size are kept."""

    def __init__(self, database: Database, settings: Settings, claim: Claim, clock: Clock):
        self.database, self.claim, self.clock = database, claim, clock
        times = {"heartbeat_s": HEARTBEAT_S, "kill_grace_s": GRACE_S, "stall_s": STALL_S}
        self.settings = settings.model_copy(update={**times, "lease_s": 30.0})
        self.commits: list[tuple[float, int]] = []

    def run(
        self, *looks: Any, is_stopping: Callable[[], bool] = lambda: False, **more: Any
    ) -> tuple[str, ScriptedRunner]:
        status = more.pop("status", 0)
        runner = ScriptedRunner(self.clock, *looks, status=status)
        for name, value in more.items():
            setattr(runner, name, value)
        watched = Supervision(self.database, self.settings, self.claim, cast(Runner, runner))
        return watched.run(is_stopping), runner

    @property
    def found(self) -> Experiment:
        return row(self.database, self.claim.experiment_id)

    @property
    def failure(self) -> tuple[str | None, str | None]:
        return self.found.failure_kind, self.found.failure_message


@pytest.fixture
def lab(
    database: Database,
    settings: Settings,
    claim: Claim,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> Lab:
    lab = Lab(database, settings, claim, clock)

    def noting(session: Any, of: Claim, batch: Any, lease_s: float) -> Any:
        lab.commits.append((clock.now - BEGAN, batch.size))
        assert lease_s == 30.0
        return recording.record(session, of, batch, lease_s)

    monkeypatch.setattr(supervisor, "record", noting)
    return lab


def points(*seqs: int) -> list[dict[str, Any]]:
    return [point(seq) for seq in seqs]


def checkpoint(after: int, file: str) -> dict[str, Any]:
    return {"seq": None, "record": "checkpoint", "after": after, "file": file, "sha256": "0" * 64}


def at(runner: ScriptedRunner) -> list[tuple[float, object]]:
    return [(when - BEGAN, what) for when, what in runner.told]


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


def test_the_order_of_a_first_attempt(lab: Lab, claim: Claim) -> None:
    ended, runner = lab.run()
    assert ended == "succeeded"
    store, id_ = lab.settings.store, claim.experiment_id
    assert runner.orders == [
        {
            "spec": claim.spec,
            "checkpoint_dir": str(store / "checkpoints" / id_ / "1"),
            "work_dir": str(store / "artifacts" / id_ / "1"),
            "resume": None,
            "inputs": {},
            "save_every_s": lab.settings.checkpoint_every_s,
        }
    ]


def test_the_order_of_an_attempt_that_goes_on(lab: Lab, claim: Claim, database: Database) -> None:
    looks = ([*points(1), checkpoint(1, "a")], [*points(2), checkpoint(2, "b")])
    assert lab.run(*looks, status=3)[0] == "unfinished"
    lab.claim = claim_next(database)
    _, runner = lab.run()
    folder = lab.settings.store / "checkpoints" / claim.experiment_id
    assert runner.orders[0]["resume"] == {
        "files": [str(folder / "1" / "b"), str(folder / "1" / "a")],
        "after": 2,
    }
    assert runner.orders[0]["checkpoint_dir"] == str(folder / "2")


def test_records_are_committed_a_few_times_a_second(lab: Lab) -> None:
    """At the first look, and then at every fourth; the rest at the end."""
    _, runner = lab.run(*(points(seq) for seq in range(1, 11)))
    assert lab.commits == [
        (1 * LOOK_S, 1), (5 * LOOK_S, 4), (9 * LOOK_S, 4), (11 * LOOK_S, 1),
    ]  # fmt: skip
    assert runner.acknowledged == [1, 5, 9, 10]
    assert lab.found.last_seq == 10


def test_without_records_the_lease_is_renewed_at_every_heartbeat(lab: Lab) -> None:
    """And nothing is acknowledged."""
    change(lab.database, lab.claim.experiment_id, lease_expires_at=1.0)
    _, runner = lab.run(*[[]] * 40)
    assert lab.commits == [(LOOK_S, 0), (LOOK_S + 1.0, 0), (LOOK_S + 2.0, 0)]
    assert runner.acknowledged == []


def test_a_checkpoint_closes_its_batch(lab: Lab) -> None:
    records = [*points(1, 2), checkpoint(2, "a"), *points(3), checkpoint(3, "b"), *points(4)]
    _, runner = lab.run(records)
    assert [size for _, size in lab.commits] == [3, 2, 1]
    assert runner.acknowledged == [2, 3, 4]
    assert runner.checkpoints == ["a", "b"]


def test_a_batch_is_no_larger_than_its_bound(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BATCH_RECORDS", 3)
    lab.run(points(*range(1, 9)), [], [], [])
    assert [size for _, size in lab.commits] == [3, 3, 2]
    assert [when for when, _ in lab.commits[:2]] == [LOOK_S, 2 * LOOK_S]  # no wait in between


def kept(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.glob("*/*")}


def test_no_file_is_deleted_that_may_be_gone_on_from(lab: Lab, claim: Claim) -> None:
    """The two that the database names, and what this attempt saved after them; no other."""
    folder = lab.settings.store / "checkpoints" / claim.experiment_id
    for name in ("0/z", "1/a", "1/b", "1/c", "1/d", "2/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    lab.run([*(checkpoint(0, file) for file in ("a", "b", "c"))])
    assert kept(folder) == {"1/b", "1/c", "1/d"}


def test_a_run_that_is_over_its_time_is_ended_at_once(lab: Lab) -> None:
    looks = [points(seq) for seq in range(1, 500)]
    ended, runner = lab.run(*looks, status=None)
    assert ended == "failed"
    message = f"over its time limit of {LIMIT_S} s: raise compute.max_runtime_s"
    assert lab.failure == ("timeout", message)
    (first, number), *_ = at(runner)
    assert (first, number) == (LIMIT_S + LOOK_S, signal.SIGKILL)


def test_a_run_that_falls_silent_is_ended_at_once(lab: Lab) -> None:
    ended, runner = lab.run(points(1), *[[]] * 8, points(2), status=None)
    assert ended == "failed"
    assert lab.failure == ("timeout", "it reported nothing for 4 s")
    (first, number), *_ = at(runner)
    assert (first, number) == (10 * LOOK_S + STALL_S + LOOK_S, signal.SIGKILL)


def test_a_silence_that_ends_in_time_is_none(lab: Lab) -> None:
    silent: list[Any] = [[]] * round(STALL_S / LOOK_S)
    assert lab.run(points(1), *silent, points(2), *silent, points(3))[0] == "succeeded"


def test_a_run_that_takes_too_much_memory_is_ended_at_once(lab: Lab) -> None:
    lab.settings = lab.settings.model_copy(update={"run_memory_bytes": 2**20})
    ended, runner = lab.run(points(1), points(2), status=None,
                            child=type("Me", (), {"pid": os.getpid()}))  # fmt: skip
    assert ended == "failed"
    kind, message = lab.failure
    assert kind == "oom"
    assert message is not None
    assert message.startswith("out of memory: peak ")
    assert message.endswith("limit 0.00 GiB; lower data.n, per_size or latent_dim")
    assert at(runner)[0] == (LOOK_S, signal.SIGKILL)


def desire(lab: Lab, desired: DesiredState) -> None:
    change(lab.database, lab.claim.experiment_id, desired_state=desired)


def test_a_cancel_is_a_sigterm_and_after_its_grace_a_sigkill(lab: Lab) -> None:
    desire(lab, DesiredState.CANCEL)
    lab.settings = lab.settings.model_copy(update={"stall_s": 60.0})
    ended, runner = lab.run(status=None)
    assert (ended, lab.found.status) == ("cancelled", "cancelled")
    assert at(runner)[:2] == [(LOOK_S, signal.SIGTERM), (LOOK_S + GRACE_S, signal.SIGKILL)]
    assert {what for _, what in at(runner)[2:]} == {"kill"}


def test_a_cancelled_run_ends_by_itself(lab: Lab) -> None:
    desire(lab, DesiredState.CANCEL)
    ended, runner = lab.run([], points(1), [], status=0)
    assert ended == "cancelled"
    assert [what for _, what in at(runner)] == [signal.SIGTERM, "kill"]
    assert lab.found.last_seq == 1


def test_an_end_that_no_one_tells_of(lab: Lab) -> None:
    """A warm parent that hangs: after a while it is ended as well."""
    desire(lab, DesiredState.CANCEL)
    ended, runner = lab.run(status=None, heeds_sigkill=False)
    assert ended == "cancelled"
    killed = [when for when, what in at(runner) if what == "kill"]
    assert killed[0] == LOOK_S + GRACE_S + supervisor.UNHEARD_S
    unheard = [when for when, what in at(runner) if what == signal.SIGKILL]
    assert unheard[0] == LOOK_S + GRACE_S


@pytest.mark.parametrize("why", ["pause", "stopping"])
@pytest.mark.parametrize(("status", "ends"), [(3, "unfinished"), (0, "succeeded")])
def test_a_pause_or_a_stopping_worker_asks_for_a_checkpoint(
    lab: Lab, why: str, status: int, ends: str
) -> None:
    if why == "pause":
        desire(lab, DesiredState.PAUSE)
    ended, runner = lab.run([], [], [], status=status, is_stopping=lambda: why == "stopping")
    assert ended == ends
    assert [what for _, what in at(runner)] == ["stop", "kill", "kill"]
    assert at(runner)[0][0] == LOOK_S
    goes_on = "paused" if why == "pause" else "queued"
    assert lab.found.status == (goes_on if ends == "unfinished" else ends)
    assert lab.found.lost == 0


@pytest.mark.parametrize("ready", [True, False])
def test_a_run_that_leaves_no_checkpoint_in_time_is_handed_back(lab: Lab, ready: bool) -> None:
    lab.settings = lab.settings.model_copy(update={"stall_s": 60.0})
    ended, runner = lab.run(status=None, ready=ready, is_stopping=lambda: True)
    assert ended == "unfinished"
    assert at(runner)[:2] == [(LOOK_S, "stop"), (LOOK_S + GRACE_S, signal.SIGKILL)]
    assert (lab.found.status, lab.found.lost) == ("queued", 0)


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
def test_how_a_run_ended_is_what_its_process_says(
    lab: Lab, how: dict[str, Any], records: list[Any], ended: str, status: str, why: Any
) -> None:
    assert lab.run([*points(1), *records], **how)[0] == ended
    assert (lab.found.status, lab.failure) == (status, why)
    assert (lab.found.last_seq, lab.found.lost) == (1, 0)


def test_out_of_memory_is_said_with_the_peak(lab: Lab) -> None:
    assert lab.run([failure("oom")], status=1)[0] == "failed"
    kind, message = lab.failure
    assert kind == "oom"
    assert (message or "").startswith("why; peak 0.00 GiB of main memory, limit ")


@pytest.mark.parametrize("status", [GONE, -signal.SIGKILL, -signal.SIGTERM])
@pytest.mark.parametrize(("lost", "becomes"), [(0, "queued"), (2, "queued"), (3, "failed")])
def test_a_runner_that_was_killed_is_lost(lab: Lab, status: int, lost: int, becomes: str) -> None:
    change(lab.database, lab.claim.experiment_id, lost=lost)
    assert lab.run(points(1), status=status)[0] == "lost"
    assert (lab.found.status, lab.found.lost) == (becomes, lost + 1)


@pytest.mark.parametrize(
    ("status", "counts", "ended"),
    [
        (-signal.SIGKILL, [5, 6], "failed"),
        (-signal.SIGKILL, [5, 5], "lost"),
        (-signal.SIGTERM, [5, 6], "lost"),
    ],
)
def test_only_a_kill_that_the_kernel_counts_is_out_of_memory(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, status: int, counts: list[int], ended: str
) -> None:
    monkeypatch.setattr(supervisor, "kernel_kills", lambda: counts.pop(0))
    assert lab.run(points(1), status=status)[0] == ended
    kind, message = lab.failure
    assert kind == ("oom" if ended == "failed" else None)
    if message:
        assert message.startswith("out of memory: peak 0.00 GiB")


@pytest.mark.parametrize(
    "spoiled",
    [
        {"seq": 3, "record": "point"},
        {"seq": 3, "record": "progress", "done": 1, "total": 2**70, "unit": "x"},
        {"seq": 3, "record": "metric"},
    ],
)
def test_no_record_after_one_that_cannot_be_stored(lab: Lab, spoiled: dict[str, Any]) -> None:
    looks = [points(1), [], [], [], [spoiled, *points(4)], points(5), [], [], []]
    ended, runner = lab.run(*looks, status=None)
    assert ended == "failed"
    kind, message = lab.failure
    assert kind == "error"
    assert (message or "").startswith("a record of the run cannot be stored: ")
    assert len(message or "") <= 1000
    assert lab.found.last_seq == 1
    assert runner.acknowledged == [1]
    assert signal.SIGKILL in [what for _, what in at(runner)]


def test_the_run_goes_on_while_the_database_is_away(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked at every heartbeat; then all that waited goes in, each record once."""
    tried: list[float] = []

    def is_over() -> bool:
        tried.append(lab.clock.now - BEGAN)
        return lab.clock.now >= BEGAN + 3

    with away(monkeypatch, is_over):
        ended, runner = lab.run(*(points(seq) for seq in range(1, 65)))
    assert ended == "succeeded"
    assert tried[:4] == [LOOK_S, LOOK_S + 1, LOOK_S + 2, LOOK_S + 3]
    assert lab.commits[0] == (LOOK_S + 3, 1)
    assert runner.acknowledged[-1] == 64
    assert sum(size for _, size in lab.commits) == 64


def test_the_outcome_waits_for_the_database(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with away(monkeypatch, lambda: lab.clock.now >= BEGAN + 5):
        ended, runner = lab.run(points(1))
    assert (ended, lab.found.status, lab.found.last_seq) == ("succeeded", "succeeded", 1)
    assert [what for _, what in at(runner)] == ["kill", "kill"]
    assert lab.clock.now < BEGAN + 5 + 2 * HEARTBEAT_S


def test_a_runner_waits_while_too_much_is_spooled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its silence is then no silence."""
    monkeypatch.setattr(supervisor, "SPOOL_RECORDS", 3)
    looks = (points(1, 2), points(3), points(4))
    with away(monkeypatch, lambda: lab.clock.now >= BEGAN + 3 * STALL_S):
        ended, runner = lab.run(*looks)
        left = len(runner.looks)
    assert (ended, left) == ("succeeded", 0)
    assert lab.found.last_seq == 4
    assert lab.commits[0][0] >= 3 * STALL_S


def test_a_lost_lease_ends_the_runner_and_writes_nothing(lab: Lab) -> None:
    change(lab.database, lab.claim.experiment_id, attempt=2)
    ended, runner = lab.run(points(1), points(2), status=None)
    assert ended == "lease lost"
    assert [what for _, what in at(runner)] == ["kill"]
    assert (lab.found.status, lab.found.attempt, lab.found.last_seq) == ("running", 2, 0)


def test_a_lease_that_is_lost_before_the_outcome(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(*_: Any) -> None:
        raise lease.LeaseLost("gone")

    monkeypatch.setattr(lease, "finish", finish)
    assert lab.run(points(1))[0] == "lease lost"
    assert lab.found.status == Status.RUNNING
