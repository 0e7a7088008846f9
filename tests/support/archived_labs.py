"""Labs of earlier versions, from the archives of their backups in tests/migrations.

- `version_0_2` (commit 7cfc9dc, revision 0029): made by the processes of a lab. Experiments that
  had succeeded, some of a sweep among them, others that were running, queued and paused, an upload,
  a webhook, and the key of the user ann.
- `revision_0050` (the tables of commit b6a2762a): made by `tests.migrations.record`, with the
  answers of the API.
- `revision_0051` (the tables of commit e0204e32): made in the same way.
"""

import os
import shutil
import subprocess
import tarfile
import uuid
from pathlib import Path

import pytest

from service.settings import Settings
from tests.support.servers import PostgreSQL, Redis

ARCHIVES = Path(__file__).parents[1] / "migrations"


def unpack(version: str, kind: str, folder: Path) -> Path:
    """Unpack the backup of a version on `sqlite` or `postgresql` into a folder."""
    (archive,) = (ARCHIVES / version).glob(f"{kind}.tar.*")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder


def empty_lab(
    kind: str, store: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """Return settings of an empty database of a kind, and of a store that does not exist."""
    if kind == "sqlite":
        return Settings(store=store, database_url=None)
    server: PostgreSQL = request.getfixturevalue("postgresql")
    redis: Redis = request.getfixturevalue("redis")
    name = f"archived_{uuid.uuid4().hex}"
    server.create(name)
    programs = server.program("pg_restore").parent
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return Settings(store=store, database_url=server.url(name), redis_url=redis.new_url())


def put_in_place(backup: Path, settings: Settings) -> None:
    """Lay out the store and the database as the earlier version left them."""
    shutil.copytree(backup / "store", settings.store)
    if settings.database_url is None:
        shutil.copy(backup / "database.sqlite3", settings.store / "mptlab.sqlite3")
    else:
        url = settings.database_url.replace("+psycopg", "")
        dump = str(backup / "database.dump")
        subprocess.run(["pg_restore", "--no-owner", "--dbname", url, dump], check=True)
