"""The expected end of a run has no error."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

COLUMN = "progress_eta_std_err_s"


def upgrade() -> None:
    # no batch: SQLite would make the table anew, and forget its triggers
    op.drop_column("experiments", COLUMN)


def downgrade() -> None:
    op.add_column("experiments", sa.Column(COLUMN, sa.Double(), nullable=True))
