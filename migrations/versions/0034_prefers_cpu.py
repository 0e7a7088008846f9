"""Add a column for experiments that an idle CPU runs in less time than a GPU needs to start."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    no = sa.false()
    op.add_column(
        "experiments", sa.Column("prefers_cpu", sa.Boolean(), server_default=no, nullable=False)
    )


def downgrade() -> None:
    op.drop_column("experiments", "prefers_cpu")
