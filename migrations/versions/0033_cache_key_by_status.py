"""The results of a cache key are found by an index, and the caller's runs of it: others may have a
million unfinished or cancelled runs with the same key."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

NAME = "ix_experiments_cache_key"


def upgrade() -> None:
    _replace("cache_key", "status", "owner_id")


def downgrade() -> None:
    _replace("cache_key")


def _replace(*columns: str) -> None:
    op.drop_index(NAME, "experiments")
    keyed = sa.text("cache_key IS NOT NULL")
    op.create_index(NAME, "experiments", [*columns], sqlite_where=keyed, postgresql_where=keyed)
