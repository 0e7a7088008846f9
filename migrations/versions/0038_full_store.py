"""Add a column for workers that start no run because the store's disk is full."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    no = sa.false()
    op.add_column(
        "workers", sa.Column("store_full", sa.Boolean(), server_default=no, nullable=False)
    )


def downgrade() -> None:
    op.drop_column("workers", "store_full")
