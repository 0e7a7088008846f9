"""The next delivery of a webhook is found by an index: a webhook may have 100,000 that are due."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _replace("ix_deliveries_next_at", "ix_deliveries_due", "webhook_id", "next_at", "experiment_id")


def downgrade() -> None:
    _replace("ix_deliveries_due", "ix_deliveries_next_at", "next_at")


def _replace(old: str, new: str, *columns: str) -> None:
    op.drop_index(old, "deliveries")
    pending = sa.text("next_at IS NOT NULL")
    op.create_index(new, "deliveries", [*columns], sqlite_where=pending, postgresql_where=pending)
