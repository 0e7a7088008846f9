"""Turns of sweeps, instead of a flag that marks all sweeps with runs on hold."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

HOLDS = sa.text("holds")


def upgrade() -> None:
    op.create_table(
        "turns",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("sweep_id", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_turns"),
    )
    op.execute("INSERT INTO turns (sweep_id) SELECT id FROM sweeps WHERE holds")
    op.drop_index("ix_sweeps_holds", "sweeps")
    with op.batch_alter_table("sweeps") as batch_op:
        batch_op.drop_column("holds")


def downgrade() -> None:
    with op.batch_alter_table("sweeps") as batch_op:
        batch_op.add_column(
            sa.Column("holds", sa.Boolean(), nullable=False, server_default=sa.false())
        )
    op.execute("UPDATE sweeps SET holds = true WHERE concurrency IS NOT NULL")
    op.create_index("ix_sweeps_holds", "sweeps", ["id"], sqlite_where=HOLDS, postgresql_where=HOLDS)
    op.drop_table("turns")
