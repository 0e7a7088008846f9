"""Samples of workers, a minute each."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "worker_samples",
        sa.Column("minute", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("worker_id", sa.String(200), nullable=False),
        sa.Column("busy", sa.Boolean(), nullable=False),
        sa.Column("memory_free", sa.BigInteger(), nullable=True),
        sa.Column("memory_total", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("minute", "worker_id", name="pk_worker_samples"),
    )


def downgrade() -> None:
    op.drop_table("worker_samples")
