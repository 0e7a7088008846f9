"""Revisions of the tables, and databases that this version refuses."""

from functools import cache
from pathlib import Path

import migrations


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


class WrongEncoding(Exception):
    """A PostgreSQL database that cannot store all text."""

    def __init__(self, encoding: str, name: str) -> None:
        super().__init__(
            f"the database {name!r} has the encoding {encoding}, and MPT Lab needs UTF8. Make "
            f"another one and name it in MPT_DATABASE_URL: CREATE DATABASE {name}_utf8 "
            "ENCODING 'UTF8' TEMPLATE template0"
        )


@cache
def newest_revision() -> str:
    """Return the revision of this version's tables: that of its last migration."""
    folder = Path(migrations.__file__).parent / "versions"
    return max(path.name.partition("_")[0] for path in folder.glob("[0-9]*.py"))
