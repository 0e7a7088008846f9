"""Missing values of uploads. Those of before have none: they were refused."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("missing", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("datasets", "missing")
