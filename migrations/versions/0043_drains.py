"""Add the table of machines whose workers start no run."""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "drains",
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("hand_back_at", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=True),
        sa.Column("drained_by", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("host", name="pk_drains"),
    )


def downgrade() -> None:
    op.drop_table("drains")
