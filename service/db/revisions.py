"""Revisions of the tables, and databases that this version refuses."""

from functools import cache
from pathlib import Path

import migrations

VERSION_0_1, VERSION_0_2 = "0008", "0029"
FIRST = "0050"
"""First of the revisions in `migrations/versions`. Tables of version 0.2 are carried over to it."""
LAST_WITH_ALL_MIGRATIONS = "b6a2762a"
"""Commit whose `mpt migrate` leads to the revision FIRST from version 0.1, and from any revision
since version 0.2."""


class NotMigrated(Exception):
    """The tables are not those of this version."""

    def __init__(
        self, message: str = "the database is not migrated to this version: run `mpt migrate`"
    ) -> None:
        super().__init__(message)


class NewerTables(NotMigrated):
    """A newer version has migrated the database."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"the database was migrated by a newer version of MPT Lab (its tables are of revision "
            f"{revision}, this version knows those up to {newest_revision()}): start that version, "
            "or restore a backup that this version made"
        )


class OlderTables(NotMigrated):
    """An earlier version has made the tables, and no migration leads from them to this version."""

    def __init__(self, revision: str) -> None:
        version = "version 0.1" if revision == VERSION_0_1 else "a development version"
        is_migrated_there = revision == VERSION_0_1 or VERSION_0_2 < revision < FIRST
        first = (
            f"First run the `mpt migrate` of commit {LAST_WITH_ALL_MIGRATIONS} of MPT Lab, then "
            "that of this version (docs/operations.md, Upgrade). Or start"
            if is_migrated_there
            else "Start"
        )
        super().__init__(
            f"the database has the tables of revision {revision} ({version}), and this version "
            f"reads only those of {' and '.join(migratable_revisions())}; nothing was changed. "
            f"{first} the version that made them, and save each result by `mpt bundle` "
            "(version 0.1: `mpt curves`)"
        )


class WrongEncoding(Exception):
    """A PostgreSQL database that cannot store all text."""

    def __init__(self, encoding: str, name: str) -> None:
        super().__init__(
            f"the database {name!r} has the encoding {encoding}, and MPT Lab needs UTF8. Make "
            f"another one and name it in MPT_DATABASE_URL: CREATE DATABASE {name}_utf8 "
            "ENCODING 'UTF8' TEMPLATE template0"
        )


def require_this_version(revision: str | None) -> None:
    """Raises NotMigrated, OlderTables or NewerTables if the tables of that revision are not those
    of this version. None: there are no tables."""
    if revision == newest_revision():
        return
    if revision is None or revision in migratable_revisions():
        raise NotMigrated
    raise (NewerTables if revision > newest_revision() else OlderTables)(revision)


def newest_revision() -> str:
    """Return the revision of this version's tables: that of its last migration."""
    return migratable_revisions()[-1]


@cache
def migratable_revisions() -> tuple[str, ...]:
    """Return the revisions whose tables `mpt migrate` brings to this version, in their order."""
    folder = Path(migrations.__file__).parent / "versions"
    files = sorted(path.name.partition("_")[0] for path in folder.glob("[0-9]*.py"))
    return (VERSION_0_2, *files)
