"""Workers that help a run: what each helps, the claims of batches, and scores on their way."""

import sqlalchemy as sa
from alembic import op

from service.db.engine import LargeId

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "divided_runs",
        sa.Column("experiment_id", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("next", sa.Integer(), nullable=False),
        sa.Column("plans", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], "fk_divided_runs_experiment_id_experiments"
        ),
        sa.PrimaryKeyConstraint("experiment_id", name="pk_divided_runs"),
    )
    op.create_table(
        "sent_batches",
        sa.Column("experiment_id", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("help_id", LargeId, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], "fk_sent_batches_experiment_id_experiments"
        ),
        sa.PrimaryKeyConstraint("experiment_id", "attempt", "number", name="pk_sent_batches"),
    )
    op.create_table(
        "helps",
        sa.Column("id", LargeId, nullable=False),
        sa.Column("experiment_id", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("queue", sa.String(16), nullable=False),
        sa.Column("worker", sa.String(200), nullable=True),
        sa.Column("dispatched_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("must_stop", sa.Boolean(), nullable=False),
        sa.Column("batches", sa.Integer(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("reason", sa.String(200), nullable=True),
        sa.Column("folded", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], "fk_helps_experiment_id_experiments"
        ),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], "fk_helps_owner_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_helps"),
    )
    op.create_index(
        "ix_helps_active",
        "helps",
        ["worker"],
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index("ix_helps_folded_owner_id", "helps", ["folded", "owner_id"])
    op.create_index("ix_helps_experiment_id_attempt", "helps", ["experiment_id", "attempt"])


def downgrade() -> None:
    for table in ("helps", "sent_batches", "divided_runs"):
        op.drop_table(table)
