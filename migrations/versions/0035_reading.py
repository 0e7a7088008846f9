"""Add columns that say how uploaded tables are read."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

TABLE = "datasets"
UNIQUE = "uq_datasets_owner_id_sha256_format_copy"
UNIQUE_READING = "uq_datasets_owner_id_sha256_format_options_sha256_copy"


def upgrade() -> None:
    with op.batch_alter_table(TABLE) as table:
        table.add_column(sa.Column("reading", sa.JSON(), nullable=True))
        table.add_column(
            sa.Column("options_sha256", sa.String(64), server_default="", nullable=False)
        )
        table.drop_constraint(UNIQUE, type_="unique")
        keys = ["owner_id", "sha256", "format", "options_sha256", "copy"]
        table.create_unique_constraint(UNIQUE_READING, keys)


def downgrade() -> None:
    """Keep each data set: equal bytes that are read in different ways become copies."""
    op.execute(
        "UPDATE datasets SET copy = (SELECT count(*) FROM datasets AS other "
        "WHERE other.owner_id = datasets.owner_id AND other.sha256 = datasets.sha256 "
        "AND other.format = datasets.format AND other.id < datasets.id)"
    )
    with op.batch_alter_table(TABLE) as table:
        table.drop_constraint(UNIQUE_READING, type_="unique")
        table.create_unique_constraint(UNIQUE, ["owner_id", "sha256", "format", "copy"])
        table.drop_column("options_sha256")
        table.drop_column("reading")
