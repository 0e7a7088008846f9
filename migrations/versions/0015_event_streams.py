"""ids of events that are never given twice; webhooks."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


DUE = sa.text("next_at IS NOT NULL")


def upgrade() -> None:
    _make_events_anew(sqlite_autoincrement=True)
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("url", sa.String(2000), nullable=False),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("statuses", sa.String(40), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], "fk_webhooks_owner_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )
    op.create_index("ix_webhooks_owner_id", "webhooks", ["owner_id"])
    op.create_table(
        "deliveries",
        sa.Column("webhook_id", sa.String(32), nullable=False),
        sa.Column("experiment_id", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=True),
        sa.Column("delivered_at", sa.Double(), nullable=True),
        sa.Column("given_up_at", sa.Double(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], "fk_deliveries_experiment_id_experiments"
        ),
        sa.PrimaryKeyConstraint("webhook_id", "experiment_id", name="pk_deliveries"),
    )
    op.create_index("ix_deliveries_experiment_id", "deliveries", ["experiment_id"])
    op.create_index(
        "ix_deliveries_next_at", "deliveries", ["next_at"], sqlite_where=DUE, postgresql_where=DUE
    )


def downgrade() -> None:
    op.drop_table("deliveries")
    op.drop_table("webhooks")
    _make_events_anew(sqlite_autoincrement=False)


def _make_events_anew(**table: bool) -> None:
    """PostgreSQL's sequences never go back."""
    if op.get_bind().dialect.name == "sqlite":
        with op.batch_alter_table("events", recreate="always", table_kwargs=table):
            pass
