"""A request whose key ends while it is received, inspected or prepared stores nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from service.accounts.models import ApiKey, AuditEntry, User
from service.datasets import routes as datasets
from service.datasets.models import Dataset
from service.db.engine import Database, now
from service.experiments.models import Experiment
from service.settings import Settings
from service.submission import submit
from service.submission.models import KeptRequest
from service.sweeps.models import Sweep
from service.vocabulary import Role
from tests.support.callers import bearer, database_of, member
from tests.support.ppca_spec import ppca_spec
from tests.support.uploads import GOOD, npy, stored

SPEC = {"spec": ppca_spec()}
ENDS: dict[str, Any] = {
    "disabled": update(User).where(User.name == "ann").values(disabled_at=now()),
    "revoked": update(ApiKey).where(ApiKey.user_id > 1).values(revoked_at=now()),
    "expired": update(ApiKey).where(ApiKey.user_id > 1).values(expires_at=now()),
    "a viewer": update(User).where(User.name == "ann").values(role=Role.VIEWER),
}
EACH_END = pytest.mark.parametrize("end", ENDS)


def ending(database: Database, end: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same work, before which ann's key ends."""

    def ended(*arguments: Any, **options: Any) -> Any:
        with database.transaction() as session:
            session.execute(ENDS[end])
        return work(*arguments, **options)

    return ended


def send(api: TestClient, headers: dict[str, str], name: str = "a.npy") -> Any:
    return api.post("/v1/datasets", params={"name": name}, content=npy(GOOD), headers=headers)


def rows(database: Database) -> list[int]:
    with database.snapshot() as session:
        tables = (Dataset, Experiment, Sweep, KeptRequest, AuditEntry, User, ApiKey)
        return [session.scalar(select(func.count()).select_from(one)) or 0 for one in tables]


def refused(answer: Any) -> None:
    assert (answer.status_code, answer.json()["reason"]) == (401, "unauthorized"), answer.text
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["detail"].startswith("since the request began, this API key ended")


@EACH_END
@pytest.mark.usefixtures("inspected_here")
def test_an_upload(
    admin: TestClient, place: Settings, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The key ends while the file is inspected."""
    database, headers = database_of(admin), bearer(member(admin)["key"])
    before = rows(database)
    monkeypatch.setattr(datasets, "inspect", ending(database, end, vars(datasets)["inspect"]))
    refused(send(admin, headers))
    assert rows(database) == before
    assert stored(place) == []


@EACH_END
@pytest.mark.usefixtures("inspected_here")
def test_an_upload_of_known_bytes(
    admin: TestClient, place: Settings, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The key ends while the file is received. The file in place is not replaced."""
    database, headers = database_of(admin), bearer(member(admin)["key"])
    file = place.datasets(send(admin, headers).json()["id"]) / "data.npy"
    file.write_bytes(b"as it was")
    monkeypatch.setattr(datasets, "receive", ending(database, end, vars(datasets)["receive"]))
    refused(send(admin, headers))
    assert file.read_bytes() == b"as it was"
    assert [one for one in stored(place) if one != file.parent] == []


@EACH_END
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/experiments", SPEC),
        ("/v1/experiments:batch", {"experiments": [SPEC]}),
        ("/v1/sweeps", {**SPEC, "grid": {"seeds": [[1], [2]]}}),
    ],
)
def test_a_submission(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch, end: str, path: str, body: Any
) -> None:
    """The key ends while the specs are prepared."""
    database, headers = database_of(admin), bearer(member(admin)["key"])
    before = rows(database)
    monkeypatch.setattr(submit, "prepare", ending(database, end, vars(submit)["prepare"]))
    refused(admin.post(path, json=body, headers={**headers, "Idempotency-Key": "k"}))
    assert rows(database) == before
