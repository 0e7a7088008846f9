"""Add the experiment to which a run gives way, the one that a worker starts next, and the time at
which a drain begins."""

import sqlalchemy as sa
from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("experiments", sa.Column("gives_way_to", sa.String(32)))
    op.add_column("workers", sa.Column("reserved_for", sa.String(32)))
    op.add_column("drains", sa.Column("starts_at", sa.Double(), nullable=False, server_default="0"))
    op.execute("UPDATE drains SET starts_at = since")


def downgrade() -> None:
    op.drop_column("drains", "starts_at")
    op.drop_column("workers", "reserved_for")
    op.drop_column("experiments", "gives_way_to")
