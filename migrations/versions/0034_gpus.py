"""Add columns for experiments that an idle CPU runs in less time than a GPU needs to start, and for
the memory that runs take on a large GPU if it is free."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

TABLE = "experiments"


def upgrade() -> None:
    no, zero = sa.false(), "0"
    op.add_column(TABLE, sa.Column("prefers_cpu", sa.Boolean(), server_default=no, nullable=False))
    op.add_column(
        TABLE, sa.Column("gpu_part_bytes", sa.BigInteger(), server_default=zero, nullable=False)
    )


def downgrade() -> None:
    op.drop_column(TABLE, "gpu_part_bytes")
    op.drop_column(TABLE, "prefers_cpu")
