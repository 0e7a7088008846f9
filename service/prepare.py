"""`python -m service.prepare`: make the store ready for embedded use. Run again, it changes
nothing: the directory, the tables (Alembic, to the newest), the local user and its key."""

import os
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config

import migrations
from service.database import Database
from service.settings import Settings
from service.start import OWNER_ONLY, restrict
from service.users import LOCAL_USER, ensure_key


def migrate(url: str) -> None:
    """Bring the database to the newest revision."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["url"] = url
    command.upgrade(config, "head")


def prepare(settings: Settings) -> None:
    settings.store.mkdir(mode=0o700, parents=True, exist_ok=True)
    migrate(settings.url)
    restrict(settings)
    with closing(Database(settings.url)) as database, database.transaction() as session:
        ensure_key(session, LOCAL_USER, settings.key_file)


if __name__ == "__main__":
    os.umask(OWNER_ONLY)
    prepare(Settings())
