"""Make the store ready for embedded use: the directory, the tables (Alembic, to the newest), the
local user and its key. `python -m service.operations.prepare`, run again, changes nothing."""

import os
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config

import migrations
from service.accounts import audit
from service.accounts.models import Role
from service.accounts.users import LOCAL_USER, ensure_key
from service.db.engine import NO_TIMEOUTS, Database
from service.db.errors import TRANSIENT_DB_ERRORS, write_trouble
from service.db.revisions import NewerTables, NotMigrated, WrongEncoding
from service.logs import logged_process
from service.operations.start import OWNER_ONLY, restrict
from service.settings import Settings

PROCESS = "mpt migrate"
"""Name of the process in the audit log."""


def migrate(url: str) -> None:
    """Migrate the database to the newest revision. Raises NewerTables if its revision is newer, and
    WrongEncoding if it cannot store all text."""
    with closing(Database(url, timeouts=NO_TIMEOUTS)) as database:
        database.check_encoding()
        try:
            database.check_revision()
        except NewerTables:
            raise
        except NotMigrated:
            pass
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["url"] = url
    command.upgrade(config, "head")


def prepare(settings: Settings) -> None:
    settings.store.mkdir(mode=0o700, parents=True, exist_ok=True)
    migrate(settings.url)
    restrict(settings)
    with closing(Database(settings.url)) as database, database.transaction() as session:
        user, key = ensure_key(session, LOCAL_USER, settings.key_file, Role.ADMIN)
        if key is not None:
            audit.note(session, PROCESS, "key.added", key.id, user=user.name, scopes=key.scopes)


@logged_process
def main() -> None:
    os.umask(OWNER_ONLY)
    try:
        prepare(Settings())
    except (NewerTables, WrongEncoding) as error:
        raise SystemExit(str(error)) from None
    except TRANSIENT_DB_ERRORS as error:
        trouble = write_trouble(error) or "the database does not answer"
        raise SystemExit(f"{trouble}: {getattr(error, 'orig', None) or error}") from None


if __name__ == "__main__":
    main()
