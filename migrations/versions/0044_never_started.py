"""Add indexes to purge experiments that were cancelled before their first attempt, and count the
bytes of the rows of experiments and of requests with an idempotency key."""

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
BYTES = {"experiments": "2048", "requests": "256 + length(idempotency_key)"}
"""Bytes of a row of these tables that were not counted."""


def count(sign: int) -> None:
    for table, size in BYTES.items():
        op.execute(
            "INSERT INTO byte_changes (owner_id, bytes) "
            f"SELECT owner_id, {sign} * sum({size}) FROM {table} GROUP BY owner_id"
        )


def upgrade() -> None:
    count(1)
    for name, (columns, where) in INDEXES.items():
        which = sa.text(where)
        op.create_index(name, "experiments", columns, sqlite_where=which, postgresql_where=which)


def downgrade() -> None:
    count(-1)
    for name in INDEXES:
        op.drop_index(name, "experiments")
