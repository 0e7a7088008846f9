"""Each audit entry is written together with the action and cannot be changed."""

import sqlite3
from contextlib import closing

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from service.accounts import audit
from service.db.engine import Database
from service.settings import Settings
from tests.support.callers import bearer, member
from tests.support.ppca_spec import ppca_spec

pytestmark = pytest.mark.usefixtures("inspected_here")


@pytest.mark.parametrize(
    "statement",
    ["UPDATE audit SET actor = 'other'", "DELETE FROM audit", "TRUNCATE audit"],
)
def test_the_audit_is_append_only(either: Database, statement: str) -> None:
    with either.transaction() as session:
        audit.note(session, "a test", "test.done", "1")
    with pytest.raises(DBAPIError, match=r"append-only|syntax error"):
        with either.transaction() as session:
            session.execute(text(statement))
    with either.snapshot() as session:
        (entry, *_) = audit.newest(session, limit=1)
        assert (entry.actor, entry.action) == ("a test", "test.done")


def test_audit_lines_cannot_be_replaced_on_sqlite(settings: Settings, database: Database) -> None:
    """Use a connection without our settings; it can still insert a new line."""
    with database.transaction() as session:
        audit.note(session, "a test", "test.done", "1")
    columns = "id, at, actor, action, object_id, details"
    with closing(sqlite3.connect(settings.store / "mptlab.sqlite3")) as raw, raw:
        (last,) = raw.execute("SELECT max(id) FROM audit").fetchone()
        values = "1.0, 'forged', 'test.done', '1', '{}'"
        for insert in ("INSERT OR REPLACE", "REPLACE", "INSERT OR IGNORE"):
            with pytest.raises(sqlite3.DatabaseError, match="append-only"):
                raw.execute(f"{insert} INTO audit ({columns}) VALUES ({last}, {values})")
        upsert = "ON CONFLICT (id) DO UPDATE SET actor = 'forged'"
        with pytest.raises(sqlite3.DatabaseError, match="append-only"):
            raw.execute(f"INSERT INTO audit ({columns}) VALUES ({last}, {values}) {upsert}")
    with database.transaction() as session:
        audit.note(session, "a test", "test.done", "2")
    with database.snapshot() as session:
        assert {one.actor for one in audit.newest(session, limit=2)} == {"a test"}


def test_each_action_is_logged_with_its_user(admin: TestClient) -> None:
    made = member(admin)
    own = bearer(made["key"])
    spec = {"spec": ppca_spec()}
    one = admin.post("/v1/experiments", json=spec, headers=own).json()["id"]
    path = f"/v1/experiments/{one}"
    admin.post("/v1/experiments", json=spec | {"priority": "1"}, headers=own)  # refused
    admin.get(path, headers=own)
    admin.patch(path, json={"name": "n", "pinned": False}, headers=own)
    admin.post(f"{path}:pause", headers=own)
    admin.post(f"{path}:resume", headers=own)
    admin.post(f"{path}:cancel")
    admin.post(f"{path}:cancel")  # cancelled already
    again = admin.post(f"{path}:retry", headers=own).json()["id"]
    admin.delete(path, headers=own)
    upload = admin.post("/v1/datasets?name=a.txt", content=b"a line\n", headers=own).json()["id"]
    admin.patch(f"/v1/datasets/{upload}", json={"visibility": "lab"}, headers=own)
    admin.delete(f"/v1/datasets/{upload}", headers=own)
    admin.patch("/v1/users/ann", json={"role": "viewer"})
    admin.delete(f"/v1/users/ann/keys/{made['id']}")

    items = admin.get("/v1/audit").json()["items"][::-1]
    bootstrap = items.pop(0)
    assert (bootstrap["actor"], bootstrap["key_id"]) == ("mpt migrate", None)
    while items[0]["actor"] == "mpt migrate":  # the store of another database
        items.pop(0)
    found = [(entry["actor"], entry["action"], entry["object_id"]) for entry in items]
    assert found == [
        ("local", "user.added", "ann"),
        ("local", "key.added", made["id"]),
        ("ann", "experiment.submitted", one),
        ("ann", "experiment.changed", one),
        ("ann", "experiment.paused", one),
        ("ann", "experiment.resumed", one),
        ("local", "experiment.cancelled", one),
        ("ann", "experiment.submitted", again),
        ("ann", "experiment.deleted", one),
        ("ann", "dataset.uploaded", upload),
        ("ann", "dataset.changed", upload),
        ("ann", "dataset.deleted", upload),
        ("local", "user.changed", "ann"),
        ("local", "key.revoked", made["id"]),
    ]
    assert {entry["key_id"] for entry in items if entry["actor"] == "ann"} == {made["id"]}
    (changed,) = (entry for entry in items if entry["action"] == "experiment.changed")
    assert changed["details"] == {"fields": ["name", "pinned"], "pinned": False}
    (about,) = admin.get("/v1/audit", params={"object_id": upload, "limit": 1}).json()["items"]
    assert about["action"] == "dataset.deleted"
    by_ann = admin.get("/v1/audit?actor=ann").json()["items"]
    assert len(by_ann) == 9


def test_each_action_on_a_sweep_is_logged_with_its_user(admin: TestClient) -> None:
    own = bearer(member(admin)["key"])
    body = {"spec": ppca_spec(), "grid": {"seeds": [[1], [2]]}}
    made = admin.post("/v1/sweeps", json=body, headers=own).json()
    path = f"/v1/sweeps/{made['id']}"
    admin.post(made["urls"]["points"], json={"grid": {"seeds": [[3], [4], [5]]}}, headers=own)
    admin.patch(path, json={"name": "n"}, headers=own)
    admin.post(f"{path}:cancel")
    admin.post(f"{path}:retry", headers=own)
    admin.delete(path, headers=own)
    items = admin.get("/v1/audit", params={"object_id": made["id"]}).json()["items"][::-1]
    assert [(entry["actor"], entry["action"], entry["details"]) for entry in items] == [
        ("ann", "sweep.submitted", {"points": 2}),
        ("ann", "sweep.extended", {"points": 3}),
        ("ann", "sweep.changed", {"fields": ["name"]}),
        ("local", "sweep.cancelled", {"experiments": 5}),
        ("ann", "sweep.retried", {"experiments": 5}),
        ("ann", "sweep.deleted", {}),
    ]


def test_pages_of_the_audit(admin: TestClient) -> None:
    for name in ("a", "b", "c"):
        admin.post("/v1/users", json={"name": name})
    seen: list[str] = []
    cursor = None
    while len(seen) < 3:
        query = {"limit": 1, **({"cursor": cursor} if cursor else {})}
        page = admin.get("/v1/audit", params=query).json()
        seen += [entry["object_id"] for entry in page["items"]]
        cursor = page["next_cursor"]
    assert seen == ["c", "b", "a"]
    for bad in ("x", "YQ", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5"):  # "a", and a number of 21 digits
        assert admin.get(f"/v1/audit?cursor={bad}").status_code == 422
