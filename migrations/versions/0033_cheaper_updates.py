"""An update of an experiment enters no large spec into an index again, and the results of a cache
key are found by an index although others have a million unfinished runs with this key."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

TABLE = "experiments"
KEY, SPEC, LARGE_SPEC = (f"ix_{TABLE}_{name}" for name in ("cache_key", "spec", "large_spec"))


def upgrade() -> None:
    _replace_key("cache_key", "status", "owner_id")
    _create(LARGE_SPEC, "spec_bytes > 2048", "owner_id", "id")
    if op.get_bind().dialect.name == "postgresql":
        op.drop_index(SPEC, TABLE)
        _index_specs("spec_bytes <= 2048")


def downgrade() -> None:
    _replace_key("cache_key")
    op.drop_index(LARGE_SPEC, TABLE)
    if op.get_bind().dialect.name == "postgresql":
        op.drop_index(SPEC, TABLE)
        _index_specs(None)


def _replace_key(*columns: str) -> None:
    op.drop_index(KEY, TABLE)
    _create(KEY, "cache_key IS NOT NULL", *columns)


def _create(name: str, condition: str, *columns: str) -> None:
    where = sa.text(condition)
    op.create_index(name, TABLE, [*columns], sqlite_where=where, postgresql_where=where)


def _index_specs(where: str | None) -> None:
    inside = sa.text("(spec::jsonb) jsonb_path_ops")
    which = None if where is None else sa.text(where)
    op.create_index(SPEC, TABLE, [inside], postgresql_using="gin", postgresql_where=which)
