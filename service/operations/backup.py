"""Save and restore the database and the files that it names, consistent with each other, while the
service runs: `python -m service.operations.backup save|restore DIR`.

The files are copied, then the database, then the files added since. A file is complete before a row
names it, so the second pass finds all files that the database names, except those removed in
between, which the first pass copied. At the end, files that the store had lost before the first
pass are deleted from the backup, because its database does not name them."""

import argparse
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import URL, inspect, make_url, select
from sqlalchemy.orm import Session

from mptcore.specs.vectors import OPTIONS_FILE
from service.accounts import audit
from service.datasets.files import options_file
from service.datasets.models import Dataset
from service.db.engine import NO_TIMEOUTS, Database
from service.db.revisions import NewerTables, OlderTables, WrongEncoding
from service.experiments.models import Artifact
from service.operations.prepare import migrate
from service.operations.start import OWNER_ONLY, begin, restrict
from service.queue import lease
from service.settings import Settings, from_environment

PROCESS = "mpt restore"
"""Name of the process in the audit log."""
FOLDERS = ("datasets", "artifacts", "checkpoints", "models")
"""Folders of the store that are saved. Unfinished uploads and the hub's cache are not."""
LISTED = "files-before-the-database.json"
"""List of the store's files at the start of a backup. It is deleted when the backup is complete."""
PART = ".backup-part"
"""Suffix of a file that is being copied."""
TAKEN = "the database is not empty: restore a backup only into a new database"


class BackupFailed(Exception):
    """The backup failed. The message gives the cause and the remedy."""


def save(settings: Settings, folder: Path) -> None:
    """Copy the database and the store into a folder. If it holds an earlier backup, only new files
    are copied, and files that the store has lost are deleted from it. Raises BackupFailed."""
    save_store(settings, folder)
    _save_database(settings, folder)
    finish_store(settings, folder)


def save_store(settings: Settings, folder: Path) -> None:
    """Copy the store, and keep a list of its files. This part of a backup comes before the
    database."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = [str(path) for path in _files(settings.store)]
    _copy_store(settings, folder / "store")
    (folder / LISTED).write_text(json.dumps(there))


def finish_store(settings: Settings, folder: Path) -> None:
    """Copy the files added since, and delete those that had been removed. This part of a backup
    comes after the database. Raises BackupFailed if `save_store` was not called before."""
    try:
        listed = {Path(path) for path in json.loads((folder / LISTED).read_text())}
    except FileNotFoundError:
        raise BackupFailed("run `mpt backup --store-only` without --finish first, then dump the "
                           "database") from None  # fmt: skip
    _copy_store(settings, folder / "store")
    kept = listed.union(_files(settings.store))
    for path in [path for path in _files(folder / "store") if path not in kept]:
        (folder / "store" / path).unlink()
    _delete_empty_folders(folder / "store")
    (folder / LISTED).unlink()


def _delete_empty_folders(folder: Path) -> None:
    for place, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # it is not empty
            os.rmdir(place)


def restore(settings: Settings, folder: Path, store_only: bool = False) -> list[str]:
    """Restore a backup into an empty database and an empty store. Running experiments return to the
    queue. Return the files that are missing or damaged. Raises BackupFailed."""
    _require_empty_store(settings)
    if not store_only:
        _restore_database(settings, folder)
    for path in _files(folder / "store"):
        if not path.name.endswith(PART):  # left by an interrupted backup
            _copy(folder / "store" / path, settings.store / path)
    try:
        migrate(settings.url)
    except (NewerTables, OlderTables) as error:
        raise BackupFailed(f"this backup cannot be used: {error}") from None
    restrict(settings)
    with closing(Database(settings.url, timeouts=NO_TIMEOUTS)) as database:
        with database.transaction() as session:
            put_back = lease.begin_anew(session)
            audit.note(session, PROCESS, "backup.restored", folder.name[:100], put_back=put_back)
        with database.snapshot() as session:
            return sorted(_broken(session, settings))


def _copy_store(settings: Settings, target: Path) -> None:
    """Copy the files that are missing or different in the target."""
    for path in _files(settings.store):
        with suppress(FileNotFoundError):  # removed during the copy: the run has a later checkpoint
            _copy(settings.store / path, target / path)


def _files(store: Path) -> Iterator[Path]:
    """Yield the files of the store, relative to it."""
    for folder in FOLDERS:
        for path in (store / folder).rglob("*"):
            if path.is_file():
                yield path.relative_to(store)
    for key in ("api-key", "session-key"):
        if (store / key).exists():
            yield Path(key)


def _copy(source: Path, target: Path) -> None:
    made = source.stat()
    with suppress(FileNotFoundError):
        kept = target.stat()
        if (kept.st_size, kept.st_mtime_ns) == (made.st_size, made.st_mtime_ns):
            return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = target.with_name(target.name + PART)
    shutil.copy2(source, part)
    os.replace(part, target)  # files with a hard link in an older backup are not changed


def _save_database(settings: Settings, folder: Path) -> None:
    """Save the database under a temporary name, so that an earlier backup stays intact until this
    one is complete."""
    url = make_url(settings.url)
    place = _place(url, folder)
    part = place.with_suffix(".part")
    part.unlink(missing_ok=True)
    if url.get_backend_name() == "sqlite":
        _copy_sqlite(Path(str(url.database)), part)
    else:
        _run_client(url, "pg_dump", "--format", "custom", "--file", str(part))
    os.replace(part, place)


def _restore_database(settings: Settings, folder: Path) -> None:
    url = make_url(settings.url)
    place = _place(url, folder)
    if not place.exists():
        raise BackupFailed(f"{place} does not exist: the configured database is of another kind, "
                           "or the backup is incomplete")  # fmt: skip
    if url.get_backend_name() == "sqlite":
        settings.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        if Path(str(url.database)).exists():
            raise BackupFailed(TAKEN)
        _copy_sqlite(place, Path(str(url.database)))
        return
    with closing(Database(settings.url)) as database:
        try:
            database.check_encoding()
        except WrongEncoding as error:
            raise BackupFailed(str(error)) from None
        if inspect(database.engine).get_table_names():
            raise BackupFailed(TAKEN)
    _run_client(url, "pg_restore", "--no-owner", "--exit-on-error", "--single-transaction",
                "--dbname", _without_password(url), str(place))  # fmt: skip


def _place(url: URL, folder: Path) -> Path:
    """Return the file of the database in a backup."""
    sqlite = url.get_backend_name() == "sqlite"
    return folder / ("database.sqlite3" if sqlite else "database.dump")


def _copy_sqlite(source: Path, target: Path) -> None:
    """Copy one snapshot, even while others write."""
    if not source.exists():
        raise BackupFailed(f"{source} does not exist: check that MPT_STORE is the store")
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


def _run_client(url: URL, program: str, *arguments: str) -> None:
    """Run one of PostgreSQL's own programs without showing the password."""
    environment = dict(os.environ)
    if url.password is not None:
        environment["PGPASSWORD"] = str(url.password)
    if program == "pg_dump":
        arguments = (*arguments, "--dbname", _without_password(url))
    try:
        done = subprocess.run(
            [program, *arguments], env=environment, stderr=subprocess.PIPE, text=True
        )
    except FileNotFoundError:
        raise BackupFailed(f"{program} is not installed here: install PostgreSQL's client "
                           "programs, or use --store-only and dump the database where it "
                           "runs") from None  # fmt: skip
    if done.returncode != 0:
        raise BackupFailed(f"{program} failed: {done.stderr.strip()}")


def _without_password(url: URL) -> str:
    """Return the URL without its password, in the form that PostgreSQL's programs read."""
    plain = URL.create(
        "postgresql", url.username, None, url.host, url.port, url.database, url.query
    )
    return plain.render_as_string()


def _require_empty_store(settings: Settings) -> None:
    if any(True for _ in _files(settings.store)):
        raise BackupFailed(
            f"{settings.store} is not empty: restore a backup only into an empty store"
        )


def _broken(session: Session, settings: Settings) -> Iterator[str]:
    """Yield the files that the database lists but that are missing or changed. Checkpoints are
    skipped: a runner uses an earlier one or starts again."""
    datasets = session.scalars(select(Dataset)).all()
    named = [(settings.datasets(one.id) / one.file, one.sha256) for one in datasets]
    for artifact in session.scalars(select(Artifact)):
        folder = settings.artifacts(artifact.experiment_id, artifact.attempt)
        named.append((folder / artifact.file, artifact.sha256))
    for path, digest in named:
        if not path.is_file() or _sha256(path) != digest:
            yield str(path.relative_to(settings.store))
    for dataset in datasets:
        file, content = settings.datasets(dataset.id) / OPTIONS_FILE, options_file(dataset.reading)
        if content is not None and not (file.is_file() and file.read_bytes() == content):
            yield str(file.relative_to(settings.store))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m service.operations.backup", description=__doc__
    )
    parser.add_argument("action", choices=["save", "restore"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store-only", action="store_true", help="not the database")
    parser.add_argument(
        "--finish", action="store_true", help="with --store-only: after the database was dumped"
    )
    arguments = parser.parse_args()
    try:
        if arguments.action == "save":
            _choose(arguments)(begin(), arguments.folder)
            return
        os.umask(OWNER_ONLY)
        broken = restore(from_environment(), arguments.folder, arguments.store_only)
    except BackupFailed as error:
        raise SystemExit(f"mpt: {error}") from None
    for path in broken:
        sys.stderr.write(f"missing or damaged: {path}\n")
    raise SystemExit(1 if broken else 0)


def _choose(arguments: argparse.Namespace) -> Callable[[Settings, Path], None]:
    if not arguments.store_only:
        return save
    return finish_store if arguments.finish else save_store


if __name__ == "__main__":
    main()
