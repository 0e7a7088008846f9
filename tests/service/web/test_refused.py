"""Requests that must be refused, each next to the nearest accepted request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.accounts.models import ApiKey
from service.accounts.users import ensure_key
from service.app import create_app
from service.db.engine import Database
from service.db.errors import DISK_FULL
from service.experiments.models import Experiment
from service.settings import Settings
from service.vocabulary import Status
from service.web.errors import cannot_write
from tests.support.attempts import keep_weights
from tests.support.ppca_spec import ppca_spec

pytestmark = pytest.mark.usefixtures("inspected_here")

TRAINED = ppca_spec(model__init="random", train={"objective": "lml", "epochs": 1})


def started_from(experiment_id: str) -> dict[str, Any]:
    return ppca_spec(
        model__init="experiment", model__experiment=experiment_id, model__noise_precision=...
    )


def revoke(session: Session, key: str) -> None:
    key_id = key.split("_")[1]
    session.execute(update(ApiKey).where(ApiKey.id == key_id).values(revoked_at=func.now()))


def submitted(api: TestClient, spec: dict[str, Any], **headers: str) -> str:
    answer = api.post("/v1/experiments", json={"spec": spec}, headers=headers)
    assert answer.status_code == 202, answer.text
    experiment_id: str = answer.json()["id"]
    return experiment_id


def becomes(database: Database, experiment_id: str, status: Status) -> None:
    """Set the state of the experiment as a worker would."""
    with database.transaction() as session:
        session.execute(
            update(Experiment).where(Experiment.id == experiment_id).values(status=status)
        )


def test_a_revoked_key(settings: Settings, database: Database, tmp_path: Path) -> None:
    files = tmp_path / "kept", tmp_path / "revoked"
    with database.transaction() as session:
        for file in files:
            ensure_key(session, "other", file)
        kept, revoked = (file.read_text().strip() for file in files)
        revoke(session, revoked)
    with TestClient(create_app(settings)) as api:
        for key, status in ((kept, 200), (revoked, 401)):
            headers = {"Authorization": f"Bearer {key}"}
            assert api.get("/v1/experiments", headers=headers).status_code == status


@pytest.mark.parametrize(
    "change",
    [
        lambda key: key[:-1],
        lambda key: key + "0",
        lambda key: key.replace("mpt_", "mqt_"),
        lambda key: "mpt_" + "0" * 16 + key[20:],
        lambda key: "mpt__" + key[21:],
        lambda key: key.swapcase(),
    ],
)
def test_incomplete_keys_are_refused(settings: Settings, change: Callable[[str], str]) -> None:
    key = settings.key_file.read_text().strip()
    with TestClient(create_app(settings)) as api:
        headers = {"Authorization": f"Bearer {change(key)}"}
        assert api.get("/v1/experiments", headers=headers).status_code == 401


def test_data_sets_of_others_are_not_listed(
    api: TestClient, database: Database, tmp_path: Path
) -> None:
    assert api.post("/v1/datasets?name=a.txt", content=b"a line\n").status_code == 201
    assert len(api.get("/v1/datasets").json()["items"]) == 1
    with database.transaction() as session:
        ensure_key(session, "other", tmp_path / "key")
    api.headers["Authorization"] = f"Bearer {(tmp_path / 'key').read_text().strip()}"
    assert api.get("/v1/datasets").json()["items"] == []


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED])
def test_weights_of_a_failed_experiment_are_refused(
    api: TestClient, database: Database, status: Status
) -> None:
    """The weights of an unfinished experiment are waited for; see test_after.py."""
    trained = submitted(api, TRAINED)
    spec = started_from(trained)
    becomes(database, trained, status)
    answer = api.post("/v1/experiments", json={"spec": spec})
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/spec/model/experiment"]
    becomes(database, trained, Status.SUCCEEDED)
    keep_weights(database, trained)
    submitted(api, spec)


def test_weights_of_an_untrained_experiment_are_refused(
    api: TestClient, database: Database
) -> None:
    scored = submitted(api, ppca_spec())
    becomes(database, scored, Status.SUCCEEDED)
    answer = api.post("/v1/experiments", json={"spec": started_from(scored)})
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/spec/model/experiment"]


@pytest.mark.parametrize(
    "beside", [{"name": "other"}, {"tags": ["b"]}, {"note": "n"}, {"priority": 1}]
)
def test_a_key_reused_with_different_fields_beside_the_spec(
    api: TestClient, beside: dict[str, Any]
) -> None:
    body = {"spec": ppca_spec(), "name": "one", "tags": ["a"]}
    headers = {"Idempotency-Key": "k"}
    first = api.post("/v1/experiments", json=body, headers=headers)
    again = api.post("/v1/experiments", json=body, headers=headers)
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    other = api.post("/v1/experiments", json=body | beside, headers=headers)
    assert (other.status_code, other.json()["reason"]) == (409, "idempotency_key_reused")


@pytest.mark.parametrize("status", list(Status))
def test_only_failed_or_cancelled_experiments_are_retried(
    api: TestClient, database: Database, status: Status
) -> None:
    old = submitted(api, ppca_spec())
    becomes(database, old, status)
    answer = api.post(f"/v1/experiments/{old}:retry")
    may = status in (Status.FAILED, Status.CANCELLED)
    assert answer.status_code == (202 if may else 409)
    assert len(api.get("/v1/experiments").json()["items"]) == (2 if may else 1)


@pytest.mark.parametrize(("most", "status"), [(7, 201), (6, 413)])
@pytest.mark.parametrize("declared", [True, False])
def test_an_upload_that_is_one_byte_too_large(
    settings: Settings, most: int, status: int, declared: bool
) -> None:
    limited = settings.model_copy(update={"max_upload_bytes": most})
    key = settings.key_file.read_text().strip()
    with TestClient(create_app(limited), headers={"Authorization": f"Bearer {key}"}) as api:
        content = b"a line\n" if declared else iter([b"a ", b"line\n"])
        assert api.post("/v1/datasets?name=a.txt", content=content).status_code == status


def test_a_database_that_cannot_write_says_whether_to_try_again() -> None:
    full, other = cannot_write(DISK_FULL), cannot_write("the disk is read-only")
    assert (full.status, full.reason, full.headers) == (507, "disk_full", None)
    assert (other.status, other.reason) == (503, "database_unavailable")
    assert other.headers == {"Retry-After": "2"}


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_database_outage_is_not_an_internal_error(
    api: TestClient, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The database is unreachable only for the store, so every route's own queries fail."""
    api.get("/v1/experiments")  # so that the key is known

    def away(*_: object, **__: object) -> None:
        raise OperationalError("select 1", {}, Exception("connection refused"))

    monkeypatch.setattr("service.db.engine.Database.transaction", away)
    monkeypatch.setattr("service.db.engine.Database.snapshot", away)
    answer = api.request(method, "/v1/experiments", json={"spec": ppca_spec()})
    assert (answer.status_code, answer.json()["reason"]) == (503, "database_unavailable")
    assert answer.headers["Retry-After"] == "2"
