"""the same bytes of one owner are one data set."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

NUMBERED = """
UPDATE datasets SET copy = (
    SELECT count(*) FROM datasets AS earlier
    WHERE earlier.owner_id = datasets.owner_id AND earlier.sha256 = datasets.sha256
    AND earlier.format = datasets.format AND earlier.id < datasets.id
)
"""
KEY = ["owner_id", "sha256", "format", "copy"]


def upgrade() -> None:
    with op.batch_alter_table("datasets") as batch_op:
        batch_op.add_column(sa.Column("copy", sa.Integer(), nullable=False, server_default="0"))
    op.execute(NUMBERED)
    with op.batch_alter_table("datasets") as batch_op:
        batch_op.create_unique_constraint(
            batch_op.f("uq_datasets_owner_id_sha256_format_copy"), KEY
        )


def downgrade() -> None:
    with op.batch_alter_table("datasets") as batch_op:
        batch_op.drop_constraint(
            batch_op.f("uq_datasets_owner_id_sha256_format_copy"), type_="unique"
        )
        batch_op.drop_column("copy")
