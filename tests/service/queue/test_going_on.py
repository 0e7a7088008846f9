"""A run that resumes from a checkpoint keeps all earlier records up to the checkpoint and none
after it."""

from typing import Any

import pytest
from sqlalchemy import select, update

from service.db.engine import Database, now
from service.experiments.models import Artifact, Block, Event, Experiment, Metric
from service.queue import lease
from service.records.recording import Batch, record
from tests.support.attempts import claim_next, claimed

KINDS: dict[str, dict[str, Any]] = {
    "point": {"record": "point", "series": "score", "labels": {}, "value": 1.0, "std_err": 0.1}
    | {"n": 1},
    "metric": {"record": "metric", "labels": {}, "value": 1.0, "std_err": 0.0},
    "log": {"record": "log", "level": "info", "message": "so far"},
    "artifact": {"record": "artifact", "media_type": "image/png", "sha256": "0" * 64},
}
TABLES = {"point": Block.last_seq, "metric": Metric.seq, "log": Event.seq, "artifact": Artifact.seq}


def batch(kind: str, seq: int) -> Batch:
    made = Batch()
    named = {"name": f"metric {seq}", "file": f"{seq}.png", "x": seq}
    made.add({**named, **KINDS[kind], "seq": seq})
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_reaped_run_keeps_its_records_up_to_the_checkpoint(either: Database, kind: str) -> None:
    first = claimed(either)
    before, after = batch(kind, 3), batch(kind, 4)
    before.add({"seq": None, "record": "checkpoint", "after": 3, "file": "c", "sha256": "0" * 64})
    with either.transaction() as session:
        record(session, first, before, 60)
        record(session, first, after, 60)
        session.execute(update(Experiment).values(lease_expires_at=now() - 1))
    with either.transaction() as session:
        lease.expire(session, max_lost=3)
    second = claim_next(either)
    assert (second.attempt, second.after_seq) == (2, 3)
    with either.snapshot() as session:
        column = TABLES[kind]
        kept = session.scalars(select(column).where(column.is_not(None), column > 0)).all()
        assert [*kept] == [3]
        assert session.get_one(Experiment, first.experiment_id).last_seq == 3
