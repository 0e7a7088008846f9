"""A store that version 0.1 (commit c3fc549) left, upgraded as docs/operations.md says.

The dumps in `version_0_1` were made by that commit's own processes, on either database: one
experiment that succeeded, one that was running, one queued and one paused, and an upload.
"""

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.accounts.models import User
from service.app import create_app
from service.db.engine import Database
from service.experiments.models import Experiment
from service.operations.prepare import prepare
from service.queue import lease, quota
from service.settings import Settings
from service.vocabulary import Status
from tests.support.kept_bytes import bytes_in_tables
from tests.support.servers import PostgreSQL
from tests.support.starting import start_next

DUMPS = Path(__file__).parent / "version_0_1"


@pytest.fixture(params=["sqlite", "postgresql"])
def upgraded(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The settings of the store, brought to this version by `mpt migrate`."""
    store = tmp_path / "store"
    store.mkdir()
    dump = (DUMPS / f"{request.param}.sql").read_text()
    if request.param == "sqlite":
        with closing(sqlite3.connect(store / "mptlab.sqlite3")) as connection:
            connection.executescript(dump)
        settings = Settings(store=store, database_url=None)
    else:
        server: PostgreSQL = request.getfixturevalue("postgresql")
        name = f"old_{uuid.uuid4().hex}"
        server.create(name)
        with psycopg.connect(server.address(name), autocommit=True) as connection:
            connection.execute(dump.encode())
        settings = Settings(store=store, database_url=server.url(name))
    prepare(settings)
    return settings


def test_an_upgrade_keeps_everything(upgraded: Settings) -> None:
    with closing(Database(upgraded.url)) as database:
        database.check_tables()
        with database.transaction() as session:
            assert session.scalars(select(User.name)).all() == ["local"]
            reaped = lease.expire(session, max_lost=3)
            assert [status for _, status in reaped] == [Status.QUEUED], "the run that was cut off"
    key = upgraded.key_file.read_text().strip()
    with TestClient(create_app(upgraded), headers={"Authorization": f"Bearer {key}"}) as api:
        found = {one["name"]: one for one in api.get("/v1/experiments").json()["items"]}
        assert {name: one["status"] for name, one in found.items()} == {
            "ended": "succeeded", "running": "queued", "queued": "queued", "paused": "paused",
        }  # fmt: skip
        ended = api.get(found["ended"]["urls"]["self"]).json()
        assert (ended["tags"], ended["note"]) == (["a", "b"], "kept")
        (score,) = [
            one
            for one in api.get(f"/v1/experiments/{ended['id']}/curves").json()["series"]
            if one["name"] == "score"
        ]
        assert len(score["x"]) == score["total_points"] > 0
        assert api.get(f"/v1/experiments/{ended['id']}/metrics").json()
        (upload,) = api.get("/v1/datasets").json()["items"]
        assert upload["name"] == "rows.csv"
        assert api.post("/v1/experiments", json={"spec": ended["spec"]}).status_code in (200, 202)


def test_existing_bytes_are_counted(upgraded: Settings) -> None:
    """All but names, notes and tags count like those that come later."""
    with closing(Database(upgraded.url)) as database, database.snapshot() as session:
        (user_id,) = session.scalars(select(User.id))
        words = sum(
            len(one.name or "") + len(one.note or "") + sum(map(len, one.tags))
            for one in session.scalars(select(Experiment))
        )
        assert quota.kept(session, user_id) == bytes_in_tables(session)[user_id] - words > 0


def test_queued_experiments_run_after_an_upgrade(upgraded: Settings) -> None:
    with closing(Database(upgraded.url)) as database, database.transaction() as session:
        claimed = start_next(session)
        assert claimed is not None
        lease.finish(session, claimed, Status.SUCCEEDED)
