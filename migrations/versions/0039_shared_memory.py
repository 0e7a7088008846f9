"""Add columns for the main memory that workers share."""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("memory_pools", sa.JSON(), nullable=True))
    op.add_column("workers", sa.Column("memory_ours", sa.BigInteger(), nullable=True))
    op.add_column("experiments", sa.Column("kept_memory", sa.String(200), nullable=True))


def downgrade() -> None:
    op.drop_column("experiments", "kept_memory")
    op.drop_column("workers", "memory_ours")
    op.drop_column("workers", "memory_pools")
