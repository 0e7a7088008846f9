"""Columns that each record sets in the tables."""

import json
import random
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update

from service.db.engine import Base, Database
from service.experiments.models import Artifact, Attempt, Block, Checkpoint, Event, Metric, Series
from service.queue import lease
from service.queue.lease import Claim
from service.records import compaction, recording
from service.records.compaction import ALL, MANY, MANY_AT_END, compact
from service.records.curves import read_series
from service.records.recording import Batch, canonical, record
from service.records.stored_records import record_lines, stored_series
from service.vocabulary import DesiredState
from tests.support.attempts import claim_next, claimed
from tests.support.stored import change, row


def point(seq: int, **parts: Any) -> dict[str, Any]:
    return {"seq": seq, "record": "point", "series": "score", "labels": {"seed": 4, "model": "a"},
            "x": seq / 2, "value": -1.5, "std_err": 0.25, "n": 8} | parts  # fmt: skip


def checkpoint(after: int, file: str) -> dict[str, Any]:
    digest = "c" * 64
    return {"seq": None, "record": "checkpoint", "after": after, "file": file, "sha256": digest}


def log(seq: int, **parts: Any) -> dict[str, Any]:
    return {"seq": seq, "record": "log", "level": "info", "message": f"{seq}"} | parts


def batch_of(*records: dict[str, Any]) -> Batch:
    batch = Batch()
    for one in records:
        batch.add(one)
    return batch


def write(database: Database, claim: Claim, *records: dict[str, Any]) -> DesiredState:
    with database.transaction() as session:
        return record(session, claim, batch_of(*records), 60).desired


def numbers_of_points(database: Database, claim: Claim) -> list[int]:
    with database.snapshot() as session:
        series = stored_series(session, claim.experiment_id)
    return [json.loads(one)["seq"] for one in record_lines(database, claim.experiment_id, series)]


def rows(database: Database, table: type[Base]) -> list[dict[str, Any]]:
    with database.snapshot() as session:
        return [
            {name: getattr(one, name) for name in table.__table__.columns.keys()}
            for one in session.scalars(select(table))
        ]


@pytest.fixture
def claim(database: Database) -> Claim:
    """The run of one of two experiments."""
    change(database, claimed(database).experiment_id, attempt=1)
    return claimed(database)


def test_labels_are_canonical() -> None:
    assert canonical({"b": 1, "a": "x"}) == '{"a":"x","b":1}' == canonical({"a": "x", "b": 1})


def test_a_batch_sorts_its_records() -> None:
    metric = {"seq": 3, "record": "metric"}
    artifact = {"seq": 4, "record": "artifact"}
    progress = {"seq": None, "record": "progress"}
    last = checkpoint(5, "a")
    batch = batch_of(point(1), log(2), metric, artifact, progress, point(6), last)
    assert batch.points == {("score", '{"model":"a","seed":4}'): [point(1), point(6)]}
    assert (batch.metrics, batch.logs, batch.artifacts) == ([metric], [log(2)], [artifact])
    assert (batch.progress, batch.checkpoint) == (progress, last)
    assert (batch.last_seq, batch.size, batch.restarts) == (6, 7, False)
    assert batch_of({"seq": None, "record": "restart"}).restarts
    assert (Batch().last_seq, Batch().size, Batch().restarts) == (0, 0, False)


def test_points_are_kept_in_columns(database: Database, claim: Claim) -> None:
    write(database, claim, point(3), point(7, value=None, reason="late"),
          point(9, std_err=None, reason="early"), point(11, reason="late"))  # fmt: skip
    (series,), (block,) = rows(database, Series), rows(database, Block)
    assert (series["experiment_id"], series["name"]) == (claim.experiment_id, "score")
    assert series["labels"] == '{"model":"a","seed":4}'
    assert block["series_id"] == series["id"]
    assert (block["first_seq"], block["last_seq"], block["count"]) == (3, 11, 4)
    assert block["seq"] == np.array([3, 7, 9, 11], "<i4").tobytes()
    nan = float("nan")
    for name, column in {
        "x": [1.5, 3.5, 4.5, 5.5],
        "value": [-1.5, nan, -1.5, -1.5],
        "std_err": [0.25, 0.25, nan, 0.25],
        "n": [8.0] * 4,
    }.items():
        assert np.array_equal(np.frombuffer(block[name], "<f8"), column, equal_nan=True), name
    assert (block["reason"], block["reasons"]) == (bytes([0, 2, 1, 2]), ["early", "late"])


def test_every_point_keeps_its_reason(database: Database, claim: Claim) -> None:
    """More than the byte of a block counts begin another one."""
    reasons = [f"reason {i:03}" for i in range(1, 258)]
    told = [reasons[0], None, *reasons]
    write(
        database,
        claim,
        *(point(i, **({"reason": one} if one else {})) for i, one in enumerate(told, 1)),
    )
    first, second = rows(database, Block)
    assert first["reasons"] == [f"reason {i:03}" for i in range(1, 256)]
    assert first["reason"] == bytes([1, 0, *range(1, 256)])
    assert (second["first_seq"], second["count"], second["reason"]) == (258, 2, bytes([1, 2]))
    with database.snapshot() as session:
        (series,) = read_series(session, claim.experiment_id, max_points=1000)
    assert series.reasons == told


def test_a_series_is_one_over_batches_and_another_by_label(
    database: Database, claim: Claim
) -> None:
    write(database, claim, point(1))
    write(database, claim, point(2), point(3, labels={"seed": 5}), point(4, series="loss"))
    found = {(one["name"], one["labels"]): one["id"] for one in rows(database, Series)}
    assert len(found) == len(rows(database, Series)) == 3
    blocks = [(one["series_id"], one["first_seq"]) for one in rows(database, Block)]
    first = found["score", '{"model":"a","seed":4}']
    second, third = found["score", '{"seed":5}'], found["loss", '{"model":"a","seed":4}']
    assert sorted(blocks) == sorted([(first, 1), (first, 2), (second, 3), (third, 4)])


def test_series_of_one_name_in_two_experiments(database: Database, claim: Claim) -> None:
    other = claimed(database)
    write(database, claim, point(1))
    write(database, other, point(1))
    ids = {one["experiment_id"]: one["id"] for one in rows(database, Series)}
    assert ids.keys() == {claim.experiment_id, other.experiment_id}
    assert {one["series_id"] for one in rows(database, Block)} == {*ids.values()}


def test_a_metric(database: Database, claim: Claim) -> None:
    one = {"seq": 2, "record": "metric", "name": "lml", "labels": {"b": 1, "a": 2}, "value": -3.5,
           "std_err": None, "reason": "one draw"}  # fmt: skip
    plain = {"seq": 3, "record": "metric", "name": "mpt", "labels": {}, "value": 1.0,
             "std_err": 0.5}  # fmt: skip
    write(database, claim, one, plain)
    first, second = sorted(rows(database, Metric), key=lambda found: found["seq"])
    assert first == {
        "experiment_id": claim.experiment_id, "name": "lml", "labels": '{"a":2,"b":1}', "seq": 2,
        "value": -3.5, "std_err": None, "reason": "one draw",
    }  # fmt: skip
    assert (second["name"], second["std_err"], second["reason"]) == ("mpt", 0.5, None)


def test_an_artifact(database: Database, claim: Claim) -> None:
    one: dict[str, Any] = {"seq": 2, "file": "a.png", "media_type": "image/png", "bytes": 77}
    one["sha256"] = "d" * 64
    write(database, claim, {"record": "artifact", **one})
    assert rows(database, Artifact) == [{"experiment_id": claim.experiment_id, "attempt": 1, **one}]


def test_a_checkpoint(database: Database, claim: Claim) -> None:
    write(database, claim, point(5), {**checkpoint(5, "00005"), "bytes": 9})
    (found,) = rows(database, Checkpoint)
    del found["created_at"]
    assert found == {
        "experiment_id": claim.experiment_id, "attempt": 1, "after_seq": 5, "file": "1/00005",
        "sha256": "c" * 64, "bytes": 9,
    }  # fmt: skip
    assert row(database, claim.experiment_id).last_seq == 5


def test_the_two_latest_checkpoints_are_kept(database: Database, claim: Claim) -> None:
    other = claimed(database)
    write(database, other, checkpoint(1, "a"))
    for after in (1, 2, 3):
        write(database, claim, checkpoint(after, f"{after}"))
    with database.snapshot() as session:
        kept = [one.file for one in lease.checkpoints(session, claim.experiment_id)]
        assert kept == ["1/3", "1/2"]
        assert len(lease.checkpoints(session, other.experiment_id)) == 1


def test_a_log(database: Database, claim: Claim) -> None:
    write(database, claim, log(4, level="warning", message="watch out"))
    (found,) = [one for one in rows(database, Event) if one["kind"] == "log"]
    assert (found["experiment_id"], found["seq"]) == (claim.experiment_id, 4)
    assert found["data"] == {"level": "warning", "message": "watch out"}


@pytest.mark.parametrize(
    ("batches", "kept"),
    [
        ([[1, 2]], [1, 2]),
        ([[1, 2, 3]], [1, 2, 3]),
        ([[1, 2, 3, 4]], [1, 2, 3, 4]),
        ([[1, 2, 3, 4, 5]], [1, 2, 3, 4]),
        ([[1, 2, 3], [4]], [1, 2, 3, 4]),
        ([[1, 2, 3], [4], [5]], [1, 2, 3, 4]),
        ([[1, 2, 3, 4], [5, 6]], [1, 2, 3, 4]),
    ],
)
def test_no_more_logs_than_are_kept(
    database: Database, claim: Claim, monkeypatch: pytest.MonkeyPatch, batches: list[list[int]],
    kept: list[int],
) -> None:  # fmt: skip
    """The first beyond them says so. Those of other experiments and other events do not count."""
    monkeypatch.setattr(recording, "MAX_LOGS", 3)
    write(database, claimed(database), *map(log, range(1, 4)))
    for seqs in batches:
        write(database, claim, *map(log, seqs))
    found = [one for one in rows(database, Event) if one["experiment_id"] == claim.experiment_id
             and one["kind"] == "log"]  # fmt: skip
    assert [one["seq"] for one in found] == kept
    messages = [one["data"]["message"] for one in found]
    assert messages[:3] == ["1", "2", "3"][: len(kept)]
    if kept[3:]:
        assert found[3]["data"] == {"level": "warning", "message": recording.LAST_LOG}


def test_progress_is_kept_until_the_next(database: Database, claim: Claim) -> None:
    write(
        database, claim, {"seq": None, "record": "progress", "done": 3, "total": 9, "unit": "masks"}
    )
    write(database, claim, log(3))
    found = row(database, claim.experiment_id)
    assert (found.progress_done, found.progress_total, found.progress_unit) == (3, 9, "masks")
    assert found.last_seq == 3


def test_progress_has_a_stage_and_an_expected_end(database: Database, claim: Claim) -> None:
    """Earlier progress does not change the stage."""
    told = {"seq": None, "record": "progress", "done": 3, "total": 9, "unit": "masks"}
    staged = batch_of(told | {"stage": {"seed": 4}})
    staged.eta_s = 60.0
    for one, expected in (
        (staged, ({"seed": 4}, 60.0)),
        (batch_of(told | {"seq": 3}), (None, None)),
    ):
        with database.transaction() as session:
            record(session, claim, one, 60)
        found = row(database, claim.experiment_id)
        assert (found.progress_stage, found.progress_eta_s) == expected
        assert found.progress_at == pytest.approx(time.time(), abs=60)


def test_a_heartbeat_does_not_move_the_last_record(database: Database, claim: Claim) -> None:
    write(database, claim, point(8))
    change(database, claim.experiment_id, desired_state=DesiredState.CANCEL, lease_expires_at=1.0)
    assert write(database, claim) is DesiredState.CANCEL
    found = row(database, claim.experiment_id)
    assert found.last_seq == 8
    assert (found.lease_expires_at or 0) > 1.0


def test_repeated_records_replace_the_stored_ones(database: Database, claim: Claim) -> None:
    write(database, claim, point(8), checkpoint(8, "a"))
    write(database, claim, {"seq": None, "record": "restart"})
    assert row(database, claim.experiment_id).last_seq == 0
    assert rows(database, Block) == rows(database, Series) == rows(database, Checkpoint) == []
    write(database, claim, {"seq": None, "record": "restart"}, point(1))
    assert row(database, claim.experiment_id).last_seq == 1
    assert len(rows(database, Block)) == 1


def environment(**parts: Any) -> dict[str, Any]:
    return {"seq": None, "record": "environment", "threads": 2, "inputs": {}} | parts


def test_each_attempt_stores_its_environment(database: Database) -> None:
    claim = claimed(database)
    write(database, claim, log(1), environment())
    write(database, claim, environment(inputs={"a": "d"}))  # the latest word
    assert row(database, claim.experiment_id).last_seq == 1  # it has no number of its own
    with database.transaction() as session:
        lease.release(session, claim)
    again = claim_next(database)
    write(database, again, environment(threads=3))
    found = {one["attempt"]: one["environment"] for one in rows(database, Attempt)}
    assert found == {1: {"threads": 2, "inputs": {"a": "d"}}, 2: {"threads": 3, "inputs": {}}}


def test_environments_of_attempts_that_are_not_listed_are_deleted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner may pause and resume for ever, and no quota counts environments."""
    monkeypatch.setattr(recording, "MAX_ATTEMPTS", 2)
    other = claimed(database)
    write(database, other, environment())
    claim = claimed(database)
    for _ in range(3):
        write(database, claim, environment())
        with database.transaction() as session:
            lease.release(session, claim)
        claim = claim_next(database)
    found = rows(database, Attempt)
    kept = {
        one["attempt"]: one["environment"] is not None
        for one in found
        if one["experiment_id"] == claim.experiment_id
    }
    assert kept == {1: False, 2: True, 3: True, 4: False}  # the fourth has reported none yet
    (first,) = [one for one in found if one["experiment_id"] == other.experiment_id]
    assert first["environment"] is not None


def by_number(database: Database) -> list[dict[str, Any]]:
    """Return all blocks, by their first record."""
    return sorted(rows(database, Block), key=lambda one: one["first_seq"])


def numbers_by_seed(database: Database, claim: Claim) -> list[tuple[Any, Any]]:
    """Return x and the reasons of each series."""
    with database.snapshot() as session:
        found = read_series(session, claim.experiment_id, max_points=1000)
    return [(series.x, series.reasons) for series in found]


def test_small_blocks_are_merged(either: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 1,000 seeds may record a point of each of 5,000 series at a time. With a block for
    each, half a million took a reader 15 s and a gigabyte."""
    monkeypatch.setattr(compaction, "MAX_REASONS", 2)
    claim = claimed(either)
    for step in range(40):
        why = (None, "a", "b", "c")[step // 10]
        reason = {"value": None, "reason": why} if why else {}
        batch = [
            point(3 * step + seed + 1, x=step, labels={"seed": seed}, **reason) for seed in range(3)
        ]
        for _ in range(2):  # the second time changes nothing
            write(either, claim, *batch)
    stored = numbers_by_seed(either, claim)
    reasons = [None] * 10 + ["a"] * 10 + ["b"] * 10 + ["c"] * 10
    assert stored == [([*range(40)], reasons)] * 3
    for up_to, sizes_of_first in ((45, [1] * 40), (60, [20, *[1] * 20]), (ALL, [30, 10])):
        with either.transaction() as session:
            compact(session, claim.experiment_id, up_to)
        counts = [one["count"] for one in by_number(either) if one["series_id"] == 1]
        assert counts == sizes_of_first, up_to
        assert numbers_by_seed(either, claim) == stored


def test_a_resumed_run_continues_after_the_blocks_up_to_its_checkpoint(either: Database) -> None:
    claim = claimed(either)
    for seq in range(1, 41):
        write(either, claim, point(seq, x=seq, labels={"seed": seq % 2}))
    with either.transaction() as session:
        of_run = {"experiment_id": claim.experiment_id, "attempt": 1, "sha256": "0"}
        session.add(Checkpoint(**of_run, file="f", after_seq=35))
        compact(session, claim.experiment_id, 35)
        lease.release(session, claim)
    again = claim_next(either)
    assert numbers_of_points(either, again) == [*range(1, 36)]
    for seq in range(36, 41):
        write(either, again, point(seq, x=seq, labels={"seed": seq % 2}))
    assert numbers_of_points(either, again) == [*range(1, 41)]


def test_blocks_without_record_numbers_stay_as_they_are(either: Database) -> None:
    """They are of before version 0.2. Later blocks are merged."""
    claim = claimed(either)
    for seq in range(1, 21):
        write(either, claim, point(seq))
    with either.transaction() as session:
        session.execute(update(Block).where(Block.first_seq <= 10).values(seq=None))
    before = numbers_of_points(either, claim)
    with either.transaction() as session:
        compact(session, claim.experiment_id, ALL)
    assert [block["count"] for block in by_number(either)] == [*[1] * 10, 10]
    assert numbers_of_points(either, claim) == before


def test_a_merged_block_has_a_maximum_size(
    either: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download holds a block of each series in memory. In several transactions, if there are many
    blocks."""
    monkeypatch.setattr(compaction, "BLOCKS_AT_ONCE", 10)
    claim = claimed(either)
    for first in range(1, 12_001, 200):
        batch = range(first, first + 200)
        write(either, claim, *(point(seq, labels={"seed": seq % 2}) for seq in batch))
    calls = 1
    with either.transaction() as session:
        while compact(session, claim.experiment_id, ALL):
            calls += 1
    counts = [block["count"] for block in by_number(either)]
    assert sum(counts) == 12_000
    assert len(counts) == 4
    assert max(counts) <= compaction.MAX_POINTS
    assert calls > 1


def test_blocks_of_a_long_run_become_few(either: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the sizes of its batches, the points stay the same and in order, and there are few
    blocks of each size after the last larger one."""
    sizes = (1, 4, 16, 64)
    monkeypatch.setattr(compaction, "SIZES", sizes)
    chance = random.Random(4)
    claim = claimed(either)
    last = 0
    for _ in range(150):
        count = 70 if chance.random() < 0.02 else chance.choice((1, 1, 1, 2, 3))
        batch = range(last + 1, last + count + 1)
        last = batch[-1]
        write(either, claim, *(point(seq, labels={"seed": 1}) for seq in batch))
        if chance.random() < 0.2:
            up_to = last if chance.random() < 0.9 else ALL
            with either.transaction() as session:
                compact(session, claim.experiment_id, up_to)
            assert numbers_of_points(either, claim) == [*range(1, last + 1)]
            counts = [block["count"] for block in by_number(either)]
            for size, next_size in pairwise(sizes):
                larger = [i for i, count in enumerate(counts) if count >= next_size]
                after = counts[larger[-1] + 1 :] if larger else counts
                small = [count for count in after if count >= size]
                assert len(small) < (MANY_AT_END if up_to == ALL else MANY)
    assert len(counts) < 75


def test_points_of_an_old_store_are_read(either: Database) -> None:
    """Its blocks have no record numbers, and those between the first and the last are guessed:
    points of several series may have the same."""
    claim = claimed(either)
    seeds = [0, 0, 1, 1, 0, 0, 1, 1]
    write(either, claim, *(point(i, labels={"seed": s}) for i, s in enumerate(seeds, 1)))
    with either.transaction() as session:
        session.execute(update(Block).values(seq=None))
    found = numbers_of_points(either, claim)
    assert len(found) == 8
    assert found == sorted(found)
