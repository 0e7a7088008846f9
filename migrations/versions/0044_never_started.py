"""Add indexes to purge experiments that were cancelled before their first attempt."""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_experiments_never_started": (
        ["finished_at", "id"],
        "status = 'cancelled' AND attempt = 0 AND sweep_id IS NULL",
    ),
    "ix_experiments_retry_of": (["retry_of"], "retry_of IS NOT NULL"),
}


def upgrade() -> None:
    for name, (columns, where) in INDEXES.items():
        which = sa.text(where)
        op.create_index(name, "experiments", columns, sqlite_where=which, postgresql_where=which)


def downgrade() -> None:
    for name in INDEXES:
        op.drop_index(name, "experiments")
