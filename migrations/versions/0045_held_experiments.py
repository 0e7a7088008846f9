"""Drop the table by which transactions reported sweeps to the choice of the next run, and add an
index of the held points of sweeps, which a background process looks at."""

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

HELD = sa.text("status = 'queued' AND held = 'sweep'")
LARGE_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.drop_table("turns")
    op.create_index(
        "ix_experiments_held",
        "experiments",
        ["status", "held", "sweep_id", "id"],
        sqlite_where=HELD,
        postgresql_where=HELD,
    )


def downgrade() -> None:
    op.drop_index("ix_experiments_held", table_name="experiments")
    op.create_table(
        "turns",
        sa.Column("id", LARGE_ID, primary_key=True),
        sa.Column("sweep_id", sa.String(32), nullable=False),
    )
    op.execute(
        "INSERT INTO turns (sweep_id) "
        "SELECT DISTINCT sweep_id FROM experiments WHERE status = 'queued' AND held = 'sweep'"
    )
