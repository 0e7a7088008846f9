"""Data of version 0.2 read the same after `mpt migrate`."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.experiments.models import Attempt, Checkpoint, Usage
from service.fair_share import FairShare
from service.operations.prepare import migrate
from service.queue import ledger, quota
from service.queue.statistics import Statistics, statistics
from service.settings import Settings
from service.sweeps.models import Sweep
from service.vocabulary import TERMINAL, Status
from tests.support.archived_labs import empty_lab, put_in_place, unpack
from tests.support.kept_bytes import bytes_in_tables


@pytest.fixture(params=["sqlite", "postgresql"])
def old(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """A lab of version 0.2 that has two users, local and ann, and no experiments."""
    lab = empty_lab(request.param, tmp_path / "store", request, monkeypatch)
    put_in_place(unpack("version_0_2", request.param, tmp_path / "backup"), lab)
    with closing(Database(lab.url)) as database, database.transaction() as session:
        for table in ("blocks", "series", "metrics", "events", "checkpoints", "attempts", "usage",
                      "requests", "sweep_points", "experiments", "sweeps", "tallies"):  # fmt: skip
            session.execute(text(f"DELETE FROM {table}"))
    return lab


def insert(session: Session, table: str, **values: object) -> None:
    names = ", ".join(values)
    places = ", ".join(f":{name}" for name in values)
    session.execute(text(f"INSERT INTO {table} ({names}) VALUES ({places})"), values)


def add_experiment(session: Session, name: str, **columns: object) -> None:
    """Insert an experiment of version 0.2; its id is the letter, repeated."""
    insert(session, "experiments", **{
        "id": name * 32, "owner_id": 1, "tags": "[]", "priority": 0, "spec": "{}",
        "device": "cpu", "family": "ppca", "status": "queued", "desired_state": "run",
        "dispatch_no": 0, "attempt": 0, "lost": 0, "created_at": 100.0, "last_seq": 0,
    } | columns)  # fmt: skip


def test_auto_of_linear_gaussians_that_have_not_ended_is_the_cpu(old: Settings) -> None:
    """The estimate of their memory, which was that of a GPU, is dropped. What was dispatched is
    queued."""
    cases = {
        "a": ("ppca", "paused", "paused", "cpu", None),
        "b": ("factor_analysis", "dispatched", "queued", "cpu", None),
        "c": ("vae", "dispatched", "queued", "auto", 9),
        "d": ("ppca", "succeeded", "succeeded", "auto", 9),
    }
    with closing(Database(old.url)) as database:
        with database.transaction() as session:
            for name, (family, status, *_) in cases.items():
                add_experiment(session, name, family=family, status=status, device="auto",
                               memory_bytes=9)  # fmt: skip
        migrate(old.url)
        with database.snapshot() as session:
            columns = "substr(id, 1, 1), status, device, memory_bytes"
            stored = session.execute(text(f"SELECT {columns} FROM experiments"))
            expected = {(name, *case[2:]) for name, case in cases.items()}
            assert {tuple(row) for row in stored} == expected


class Past(NamedTuple):
    """An experiment of before `totals`, and its attempts: the outcome that they get, the event of
    their end, and whether they are folded. Without an event they have not ended."""

    columns: dict[str, Any]
    attempts: Sequence[tuple[str | None, dict[str, Any] | None, bool]] = ()


def end(outcome: str, folded: bool, **event: Any) -> tuple[str, dict[str, Any], bool]:
    return outcome, event, folded


RUNS = (None, None, False)
PAST = {
    "a": Past({"status": "succeeded"}, [end("succeeded", True, status="succeeded", attempt=1)]),
    "b": Past(
        {"status": "failed", "failure_kind": "oom", "lost": 1},
        [
            end("lost", True, status="queued", lost_attempt=1),
            end("oom", False, status="failed", attempt=2),
        ],
    ),
    "c": Past({"status": "succeeded"}, [end("succeeded", False, status="succeeded", attempt=1)]),
    "d": Past(
        {"status": "running", "lost": 1},
        [end("lost", True, status="queued", lost_attempt=1), RUNS],
    ),
    "e": Past({"status": "running"}, [RUNS]),
    "f": Past(
        {"status": "queued", "lost": 1}, [end("lost", False, status="queued", lost_attempt=1)]
    ),
    "0": Past(
        {"status": "paused"},
        [
            end("queued", True, status="queued", attempt=1),
            end("paused", True, status="paused", attempt=2),
        ],
    ),
    "1": Past({"status": "cancelled", "started_at": None}),
    "2": Past(
        {"status": "failed", "failure_kind": "lost", "lost": 2},
        [
            end("lost", True, status="queued", lost_attempt=1),
            end("lost", False, status="failed", lost_attempt=2),
        ],
    ),
    "3": Past({"status": "cancelled"}, [end("paused", False, status="paused", attempt=1)]),
    "4": Past({"status": "queued"}, [end("queued", True, status="queued", restored=True)]),
    "5": Past(
        {"status": "failed", "failure_kind": "error"},
        [end("error", True, status="failed", attempt=1)],
    ),
}
PURGED = "5"
"""An experiment that is purged before the migration."""


def test_no_counter_changes_when_totals_replace_tallies(old: Settings) -> None:
    """Nor by the fold that follows: each attempt is counted once."""
    rows: dict[str, dict[str, Any]] = {
        name: {"started_at": 110.0 + i, "finished_at": 1024.0 * 2**i, "attempt": len(past.attempts)}
        | past.columns
        for i, (name, past) in enumerate(PAST.items())
    }
    begun = [row for row in rows.values() if row["started_at"] is not None]
    ended = [row for row in begun if row["status"] in TERMINAL]
    expected = Statistics(
        Counter(dict.fromkeys(Status, 0))
        + Counter(row["status"] for name, row in rows.items() if name != PURGED),
        Counter(row["failure_kind"] for row in ended if "failure_kind" in row),
        lost=sum(row.get("lost", 0) for row in begun),
        waits=len(begun), waits_s=sum(row["started_at"] - 100 for row in begun),
        runs=len(ended), runs_s=sum(row["finished_at"] - row["started_at"] for row in ended),
    )  # fmt: skip
    with closing(Database(old.url)) as database:
        with database.transaction() as session:
            for name, row in rows.items():
                add_experiment(session, name)
                add_past(session, name * 32, row, PAST[name])
            for table, key in {"events": "experiment_id", "attempts": "experiment_id",
                               "experiments": "id"}.items():  # fmt: skip
                session.execute(text(f"DELETE FROM {table} WHERE {key} = '{PURGED * 32}'"))
        migrate(old.url)
        outcomes = defaultdict[str, list[str | None]](list)
        with database.transaction() as session:
            assert statistics(session) == expected
            for line in session.scalars(select(Attempt).order_by(Attempt.attempt)):
                outcomes[line.experiment_id[0]].append(line.outcome)
            ledger.fold(session, FairShare())
            assert statistics(session) == expected
    assert outcomes == {
        name: [outcome for outcome, *_ in past.attempts]
        for name, past in PAST.items()
        if past.attempts and name != PURGED
    }


def add_past(session: Session, experiment_id: str, columns: dict[str, Any], past: Past) -> None:
    """Bring a queued experiment where it was, with its attempts and their events."""
    changes = ", ".join(f"{column} = :{column}" for column in columns)
    change = text(f"UPDATE experiments SET {changes} WHERE id = '{experiment_id}'")
    session.execute(change, columns)
    for attempt, (_, event, folded) in enumerate(past.attempts, start=1):
        insert(session, "attempts", experiment_id=experiment_id, attempt=attempt, owner_id=1,
               queue="cpu", worker="w", family="ppca", started_at=110.0,
               ended_at=120.0 if event else None, folded=folded)  # fmt: skip
        for data in ({"status": "running", "attempt": attempt}, event):
            if data:
                insert(session, "events", experiment_id=experiment_id, at=0.0, kind="status",
                       data=json.dumps(data))  # fmt: skip


def test_usage_is_charged(old: Settings) -> None:
    with closing(Database(old.url)) as database:
        with database.transaction() as session:
            insert(session, "usage", owner_id=1, slot_s=1000.0, as_of=90.0)
        migrate(old.url)
        with database.snapshot() as session:
            (usage,) = session.scalars(select(Usage))
            assert (usage.settled_s, usage.charged_s, usage.as_of) == (1000.0, 1000.0, 90.0)


def test_no_run_resumes_within_a_block(old: Settings) -> None:
    """Version 0.2 cut it there."""
    with closing(Database(old.url)) as database:
        with database.transaction() as session:
            add_experiment(session, "a")
            insert(session, "series", id=1, experiment_id="a" * 32, name="s", labels="{}")
            bytes_of = dict.fromkeys(("x", "value", "std_err", "n", "reason"), b"")
            for first, last in ((1, 4), (5, 9)):
                insert(session, "blocks", series_id=1, first_seq=first, last_seq=last, count=1,
                       reasons="[]", **bytes_of)  # fmt: skip
            for after in (4, 6, 9):
                insert(session, "checkpoints", experiment_id="a" * 32, attempt=1, file=f"{after}",
                       sha256="0", after_seq=after, created_at=0.0)  # fmt: skip
        migrate(old.url)
        with database.snapshot() as session:
            assert sorted(session.scalars(select(Checkpoint.after_seq))) == [4, 9]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_existing_bytes_are_counted(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sizes are those of later rows; the tags of a sweep have two more, their brackets."""
    lab = empty_lab(kind, tmp_path / "store", request, monkeypatch)
    put_in_place(unpack("version_0_2", kind, tmp_path / "backup"), lab)
    migrate(lab.url)
    with closing(Database(lab.url)) as database, database.snapshot() as session:
        (owner_id,) = session.scalars(select(Sweep.owner_id))
        assert quota.kept(session, owner_id) == bytes_in_tables(session)[owner_id] + len("[]")
