"""The environment of each attempt in the API."""

from typing import Any

from fastapi.testclient import TestClient

from service.db.engine import Database
from service.queue import lease
from service.queue.lease import Claim
from service.records.recording import Batch, record
from tests.support.attempts import claim_next, claimed
from tests.support.environments import ENVIRONMENT


def keep(database: Database, claim: Claim, **parts: Any) -> None:
    batch = Batch()
    batch.add({"seq": None, "record": "environment", **ENVIRONMENT, **parts})
    with database.transaction() as session:
        record(session, claim, batch, 60)


def test_each_attempt_records_its_environment(api: TestClient, database: Database) -> None:
    """Earlier attempts of a resumed run are included. Lists leave this out."""
    claim = claimed(database)
    url = f"/v1/experiments/{claim.experiment_id}"
    (begun,) = api.get(url).json()["attempts"]
    assert (begun["attempt"], begun["worker"], begun["ended_at"]) == (1, "w", None)
    assert begun["environment"] is None  # its runner has not said
    keep(database, claim)
    with database.transaction() as session:
        lease.release(session, claim)
    keep(database, claim_next(database), threads=3, resumed_from="a GPU")
    found = api.get(url).json()["attempts"]
    first = {**ENVIRONMENT, "memory_was_short": False, "resumed_from": None}  # as before 0.2
    second = {**first, "threads": 3, "resumed_from": "a GPU"}
    assert [one["environment"] for one in found] == [first, second]
    assert [one["ended_at"] is None for one in found] == [False, True]
    assert "attempts" not in api.get("/v1/experiments").json()["items"][0]
