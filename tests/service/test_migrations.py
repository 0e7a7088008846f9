"""Migrations lead to what the models say, and back."""

from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import inspect

import migrations
from service.database import Base, Database


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = Config()
    made.set_main_option("script_location", str(Path(migrations.__file__).parent))
    made.attributes["url"] = f"sqlite:///{tmp_path / 'db.sqlite3'}"
    return made


def test_up_finds_no_difference_and_down_leaves_nothing(config: Config) -> None:
    database = Database(config.attributes["url"])
    for _ in range(2):
        command.upgrade(config, "head")
        with database.engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []
        command.downgrade(config, "base")
        assert set(inspect(database.engine).get_table_names()) <= {"alembic_version"}
