"""uploads of text."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("datasets") as batch_op:
        batch_op.alter_column("dim", existing_type=sa.Integer(), nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM datasets WHERE dim IS NULL")
    with op.batch_alter_table("datasets") as batch_op:
        batch_op.alter_column("dim", existing_type=sa.Integer(), nullable=False)
