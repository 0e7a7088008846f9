"""Sizes of checkpoints. Those of before are not known; the next ones of their runs replace them."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("bytes", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("checkpoints", "bytes")
