"""Make the store ready for embedded use: the directory, the tables (Alembic, to the newest), the
key that signs cookies, the local user and its API key. `python -m service.operations.prepare`, run
again, changes nothing. It prints the users who store more than their limit."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config

import migrations
from service.accounts import accounts, audit
from service.accounts.sign_in import session_key
from service.accounts.users import LOCAL_USER, ensure_key
from service.db.engine import NO_TIMEOUTS, Database
from service.db.errors import TRANSIENT_DB_ERRORS, write_trouble
from service.db.revisions import NewerTables, NotMigrated, OlderTables, WrongEncoding
from service.db.space import make_shrinkable
from service.logs import logged_process
from service.operations.start import OWNER_ONLY, restrict
from service.queue import quota
from service.settings import Settings, from_environment
from service.vocabulary import Role

PROCESS = "mpt migrate"
"""Name of the process in the audit log."""


def migrate(url: str) -> None:
    """Migrate the database to the newest revision. Raises NewerTables or OlderTables if no
    migration leads there, and WrongEncoding if the database cannot store all text."""
    with closing(Database(url, timeouts=NO_TIMEOUTS)) as database:
        database.check_encoding()
        try:
            database.check_revision()
        except (NewerTables, OlderTables):
            raise
        except NotMigrated:
            pass
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["url"] = url
    command.upgrade(config, "head")
    with closing(Database(url, timeouts=NO_TIMEOUTS)) as database:
        make_shrinkable(database)


def prepare(settings: Settings) -> None:
    settings.store.mkdir(mode=0o700, parents=True, exist_ok=True)
    migrate(settings.url)
    session_key(settings.session_key_file)
    restrict(settings)
    with closing(Database(settings.url)) as database, database.transaction() as session:
        user, key = ensure_key(session, LOCAL_USER, settings.key_file, Role.ADMIN)
        if key is not None:
            audit.note(session, PROCESS, "key.added", key.id, user=user.name, scopes=key.scopes)


def over_limit(settings: Settings) -> Iterator[str]:
    """Yield a line for each user from whom nothing more is accepted, because of stored bytes."""
    with closing(Database(settings.url)) as database, database.snapshot() as session:
        for user in accounts.listed(session):
            room = quota.room_of(session, user.id, settings.share)
            if not room.holds(0):
                yield (
                    f"user {user.name} stores {room.kept:,} bytes, unfinished experiments may "
                    f"write {room.expected:,} more, and the limit is {room.most:,}: nothing is "
                    f"deleted, but further submissions and uploads of {user.name} are refused. "
                    f"To allow more: mpt admin user set {user.name} --max-bytes BYTES, or for all "
                    "users MPT_SHARE__MAX_BYTES (`none`: no limit)"
                )


@logged_process
def main() -> None:
    os.umask(OWNER_ONLY)
    settings = from_environment()
    try:
        prepare(settings)
        for line in over_limit(settings):
            sys.stdout.write(line + os.linesep)
    except (NewerTables, OlderTables, WrongEncoding) as error:
        raise SystemExit(str(error)) from None
    except TRANSIENT_DB_ERRORS as error:
        trouble = write_trouble(error) or "the database does not answer"
        raise SystemExit(f"{trouble}: {getattr(error, 'orig', None) or error}") from None


if __name__ == "__main__":
    main()
