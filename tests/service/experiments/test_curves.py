"""Curves as a reader follows them: each point once, and in little memory."""

import random
import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from service.database import Database
from service.experiments import lease
from service.experiments.curves import hold_still, read_series
from service.experiments.lease import Claim
from service.experiments.models import Block, Checkpoint, Experiment, Series
from service.experiments.recording import Batch, record
from service.main import create_app
from service.settings import Settings
from tests.support.attempts import claim_next, submitted

LAST = 60
CHECKPOINT_AFTER = 25
SERIES = ("score", "loss", "mpt")


def records() -> list[dict[str, Any]]:
    """Points of three series in no regular order, with other records between: no block has
    contiguous numbers."""
    chance = random.Random(1)
    made: list[dict[str, Any]] = []
    for seq in range(1, LAST + 1):
        if chance.random() < 0.2:
            made.append({"seq": seq, "record": "log", "level": "info", "message": str(seq)})
        else:
            made.append({"seq": seq, "record": "point", "series": chance.choice(SERIES),
                         "labels": {}, "x": seq, "value": 1.0, "std_err": None, "n": 1,
                         "reason": "one draw"})  # fmt: skip
    return made


RECORDS = records()


def write(database: Database, claimed: Claim, after: int, upto: int) -> None:
    """The records after `after` up to `upto`, as one batch: a block of each series."""
    batch = Batch()
    for one in RECORDS[after:upto]:
        batch.add(dict(one))
    with database.transaction() as session:
        record(session, claimed, batch, 60)


class Reader:
    """Follows one experiment over HTTP, by the cursor that its last answer gave."""

    def __init__(self, settings: Settings, experiment_id: str):
        key = settings.key_file.read_text().strip()
        alone = settings.model_copy(update={"redis_url": None})  # of which a client is in each loop
        self.api = TestClient(create_app(alone), headers={"Authorization": f"Bearer {key}"})
        self.url = f"/v1/experiments/{experiment_id}/curves"
        self.after = 0
        self.seen: dict[str, list[float]] = {name: [] for name in SERIES}

    def look(self) -> None:
        answer = self.api.get(self.url, params={"after": self.after}).json()
        for one in answer["series"]:
            assert one["total_points"] == len(one["x"])
            self.seen[one["name"]] += one["x"]
        self.after = answer["last_seq"]


UNDISTURBED = {name: [float(r["x"]) for r in RECORDS if r.get("series") == name] for name in SERIES}


@pytest.mark.parametrize("mode", ["settings", "lab"])
def test_a_reader_across_a_resume_sees_each_point_once(
    request: pytest.FixtureRequest, mode: str
) -> None:
    """The run is handed back after 40 records with a checkpoint after 25, and goes on in blocks
    that are cut elsewhere."""
    settings = request.getfixturevalue(mode)
    database = Database(settings.url)
    experiment_id = submitted(database)
    reader = Reader(settings, experiment_id)
    first = claim_next(database)
    for after, upto in pairwise((0, CHECKPOINT_AFTER, 40)):
        write(database, first, after, upto)
        reader.look()
    with database.transaction() as session:
        row = {"experiment_id": experiment_id, "attempt": 1, "file": "f", "sha256": "0"}
        session.add(Checkpoint(**row, after_seq=CHECKPOINT_AFTER))
        lease.release(session, first)
    second = claim_next(database)
    reader.look()
    for after, upto in pairwise((CHECKPOINT_AFTER, 33, 47, LAST)):
        write(database, second, after, upto)
        reader.look()
    assert reader.seen == UNDISTURBED


def test_after_cuts_blocks(either: Database) -> None:
    experiment_id = submitted(either)
    write(either, claim_next(either), 0, LAST)
    for after in range(LAST + 1):
        with either.snapshot() as session:
            found = read_series(session, experiment_id, after=after, max_points=1000)
        wanted = {name: [i for i in x if i > after] for name, x in UNDISTURBED.items()}
        assert {one.name: one.x for one in found} == {n: x for n, x in wanted.items() if x}


def test_a_block_without_numbers_is_taken_as_evenly_spaced(either: Database) -> None:
    experiment_id = submitted(either)
    write(either, claim_next(either), 0, LAST)
    with either.transaction() as session:
        session.execute(update(Block).values(seq=None))
    with either.snapshot() as session:
        found = read_series(session, experiment_id, after=30, max_points=1000)
        every = read_series(session, experiment_id, max_points=1000)
    for one, whole in zip(found, every, strict=True):
        assert whole.x[-len(one.x) :] == one.x
        assert abs(len([x for x in whole.x if x > 30]) - len(one.x)) <= 3


def test_a_moment_is_held(either: Database) -> None:
    """Between two statements of a reader the run is put back."""
    experiment_id = submitted(either)
    claimed = claim_next(either)
    write(either, claimed, 0, LAST)
    with either.snapshot() as session:
        hold_still(session)
        assert session.get_one(Experiment, experiment_id).last_seq == LAST
        with either.transaction() as other:
            lease.release(other, claimed)
        claim_next(either)
        found = read_series(session, experiment_id, max_points=1000)
    assert {one.name: one.x for one in found} == UNDISTURBED


COUNT = 2_000
BLOCKS = 200


def test_points_are_thinned_while_they_are_read(database: Database) -> None:
    """400,000 points, 15 MB: the same points as ever are given, in a fraction of that memory."""
    experiment_id = submitted(database)
    with database.transaction() as session:
        session.add(Series(id=1, experiment_id=experiment_id, name="score", labels="{}"))
        session.flush()
        for first in range(0, COUNT * BLOCKS, COUNT):
            x = np.arange(first, first + COUNT, dtype="<f8").tobytes()
            columns = {"x": x, "value": x, "std_err": x, "n": x}
            session.add(Block(series_id=1, first_seq=first + 1, last_seq=first + COUNT, count=COUNT,
                              seq=None, reason=bytes(COUNT), reasons=[], **columns))  # fmt: skip
            session.flush()
            session.expunge_all()
    with database.snapshot() as session:
        read_series(session, experiment_id, max_points=2)
        tracemalloc.start()
        (one,) = read_series(session, experiment_id, max_points=200)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert one.x == np.linspace(0, COUNT * BLOCKS - 1, 200).round().tolist()
    assert (one.total_points, one.sampled) == (COUNT * BLOCKS, True)
    assert peak < 8e6
