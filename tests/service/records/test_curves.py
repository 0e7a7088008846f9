"""Curves as a reader follows them: each point once, and in little memory."""

import random
import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from numpy.typing import NDArray
from sqlalchemy import delete, update

from service.app import create_app
from service.db.engine import Database, hold_still
from service.experiments.models import Block, Checkpoint, Experiment, Series
from service.queue import lease
from service.queue.lease import Claim
from service.records.curves import TooFewPoints, read_series
from service.records.recording import Batch, record
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
def test_a_reader_sees_each_point_once_across_a_resume(
    request: pytest.FixtureRequest, mode: str
) -> None:
    """The run is handed back after 40 records with a checkpoint after 25, and continues in blocks
    with other boundaries."""
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


def test_a_block_without_numbers_is_read_as_evenly_spaced(either: Database) -> None:
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


def store_series(
    database: Database, experiment_id: str, values: NDArray[np.float64], count: int = COUNT
) -> None:
    """The series `score` with these values over 0, 1, …, in blocks of `count`."""
    with database.transaction() as session:
        session.add(Series(id=1, experiment_id=experiment_id, name="score", labels="{}"))
        session.flush()
        for first in range(0, len(values), count):
            part = values[first : first + count].astype("<f8")
            x = np.arange(first, first + len(part), dtype="<f8").tobytes()
            columns = {"x": x, "value": part.tobytes(), "std_err": x, "n": x}
            reason = np.isnan(part).astype("u1").tobytes()
            session.add(Block(series_id=1, first_seq=first + 1, last_seq=first + len(part),
                              count=len(part), seq=None, reason=reason, reasons=["not a number"],
                              **columns))  # fmt: skip
            session.flush()
            session.expunge_all()


def test_points_are_downsampled_while_they_are_read(database: Database) -> None:
    """400,000 points, 15 MB: thinned in a fraction of that memory, and no spike is lost."""
    experiment_id = submitted(database)
    values = np.sin(np.arange(COUNT * BLOCKS) / 1e4)
    spikes = [77_777, 123_456, 399_998]
    values[spikes] = [50.0, -50.0, 51.0]
    store_series(database, experiment_id, values)
    with database.snapshot() as session:
        read_series(session, experiment_id, max_points=2)
        tracemalloc.start()
        (one,) = read_series(session, experiment_id, max_points=200)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert {0, *spikes, len(values) - 1} <= {*one.x}
    assert one.value == values[np.array(one.x, int)].tolist()
    assert 190 <= len(one.x) <= 200
    assert (one.total_points, one.sampled) == (COUNT * BLOCKS, True)
    assert peak < 8e6


def test_downsampling_does_not_depend_on_the_blocks(either: Database) -> None:
    values = np.random.default_rng(0).normal(size=250_000)
    values[1000:1400] = np.nan
    shown = []
    for count in (1000, 19_997):
        with either.transaction() as session:
            session.execute(delete(Block))
            session.execute(delete(Series))
        experiment_id = submitted(either)
        store_series(either, experiment_id, values, count)
        with either.snapshot() as session:
            shown += read_series(session, experiment_id, max_points=500)
    assert shown[0] == shown[1]
    assert None in shown[0].value
    assert shown[0].reasons is not None
    assert [reason is None for reason in shown[0].reasons] == [
        value is not None for value in shown[0].value
    ]


def test_all_series_together_have_at_most_the_requested_points(database: Database) -> None:
    experiment_id = submitted(database)
    write(database, claim_next(database), 0, LAST)
    totals = {name: len(x) for name, x in UNDISTURBED.items()}
    for most in range(6, LAST + 1):
        with database.snapshot() as session:
            found = read_series(session, experiment_id, max_points=most)
        assert {one.name: one.total_points for one in found} == totals
        assert sum(len(one.x) for one in found) <= most
        for one in found:
            assert (one.x[0], one.x[-1]) == (UNDISTURBED[one.name][0], UNDISTURBED[one.name][-1])
            assert one.sampled == (len(one.x) < one.total_points)
    with (
        database.snapshot() as session,
        pytest.raises(TooFewPoints, match="3 series need at least 6"),
    ):
        read_series(session, experiment_id, max_points=5)
