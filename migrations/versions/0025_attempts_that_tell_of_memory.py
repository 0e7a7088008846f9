"""An index of the few attempts that corrections of memory estimates are learned from."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

TELLING = sa.text("peak_bytes IS NOT NULL AND estimated_bytes >= 67108864")


def upgrade() -> None:
    op.create_index(
        "ix_attempts_telling",
        "attempts",
        ["family", "queue", "ended_at"],
        sqlite_where=TELLING,
        postgresql_where=TELLING,
    )


def downgrade() -> None:
    op.drop_index("ix_attempts_telling", "attempts")
