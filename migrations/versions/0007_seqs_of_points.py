"""the record number of each point."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("blocks") as batch_op:
        batch_op.add_column(sa.Column("seq", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("blocks") as batch_op:
        batch_op.drop_column("seq")
