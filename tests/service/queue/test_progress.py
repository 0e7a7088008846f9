"""Progress and expected end of a run in the API."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.db.engine import Database
from service.queue import lease
from service.queue.lease import Claim
from service.records.recording import Batch, record
from service.vocabulary import Status
from tests.support.attempts import claimed

STAGE = {"name": "training", "done": 2, "total": 5, "unit": "epochs"}


def tell(database: Database, claim: Claim, eta_s: float | None, **parts: Any) -> None:
    batch = Batch()
    batch.add({"seq": None, "record": "progress", "done": 3, "total": 9, "unit": "masks", **parts})
    batch.eta_s = eta_s
    with database.transaction() as session:
        record(session, claim, batch, 60)


def progress(api: TestClient, claim: Claim) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/v1/experiments/{claim.experiment_id}").json()["progress"]
    return found


def test_a_run_estimates_its_end(api: TestClient, database: Database) -> None:
    claim = claimed(database)
    tell(database, claim, 60.0, stage=STAGE)
    found = progress(api, claim)
    assert (found["done"], found["total"], found["unit"]) == (3, 9, "masks")
    assert found["stage"] == STAGE
    assert found["eta_s"] == 60.0
    assert "eta_std_err_s" not in found
    assert found["at"] < found["estimated_end"]
    again = progress(api, claim)
    assert again == found  # it is that of the last report: a client that has it gets 304


def test_an_unknown_end_is_null(api: TestClient, database: Database) -> None:
    claim = claimed(database)
    tell(database, claim, 60.0, stage=STAGE)
    tell(database, claim, None)
    found = progress(api, claim)
    assert found["stage"] is found["eta_s"] is found["estimated_end"] is None


@pytest.mark.parametrize("how", ["ended", "handed back"])
def test_experiments_that_do_not_run_have_no_expected_end(
    api: TestClient, database: Database, how: str
) -> None:
    claim = claimed(database)
    tell(database, claim, 60.0)
    with database.transaction() as session:
        if how == "ended":
            lease.finish(session, claim, Status.CANCELLED)
        else:
            lease.release(session, claim)
    found = progress(api, claim)
    assert found["done"] == 3
    assert found["eta_s"] is found["estimated_end"] is None
