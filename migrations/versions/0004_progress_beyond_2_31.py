"""progress beyond 2^31."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS = ("progress_done", "progress_total")


def upgrade() -> None:
    with op.batch_alter_table("experiments") as batch_op:
        for column in COLUMNS:
            batch_op.alter_column(column, existing_type=sa.Integer(), type_=sa.BigInteger())


def downgrade() -> None:
    with op.batch_alter_table("experiments") as batch_op:
        for column in COLUMNS:
            batch_op.alter_column(column, existing_type=sa.BigInteger(), type_=sa.Integer())
