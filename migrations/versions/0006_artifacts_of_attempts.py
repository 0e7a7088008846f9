"""artifacts of attempts: the directory of an artifact is that of the attempt that recorded it."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("artifacts") as batch_op:  # 0: beside those directories
        batch_op.add_column(sa.Column("attempt", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("artifacts") as batch_op:
        batch_op.alter_column("attempt", existing_type=sa.Integer(), server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("artifacts") as batch_op:
        batch_op.drop_column("attempt")
