"""Add a column for attempts that were handed back because their machine lacked something."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("handed_back", sa.String(16), nullable=True))


def downgrade() -> None:
    op.drop_column("attempts", "handed_back")
