"""the device that an experiment asks for, and the queue by it."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SPEC = sa.table("experiments", sa.column("spec", sa.JSON), sa.column("device", sa.String))


def upgrade() -> None:
    with op.batch_alter_table("experiments") as batch_op:
        batch_op.add_column(sa.Column("device", sa.String(8), nullable=True))
    asked = sa.func.coalesce(SPEC.c.spec["compute"]["device"].as_string(), "auto")
    op.execute(SPEC.update().values(device=asked))
    with op.batch_alter_table("experiments") as batch_op:
        batch_op.alter_column("device", existing_type=sa.String(8), nullable=False)
        batch_op.drop_index("ix_experiments_queue")
        batch_op.create_index("ix_experiments_queue", ["status", "device", "priority", "id"])


def downgrade() -> None:
    with op.batch_alter_table("experiments") as batch_op:
        batch_op.drop_index("ix_experiments_queue")
        batch_op.drop_column("device")
        batch_op.create_index("ix_experiments_queue", ["status", "priority", "id"])
