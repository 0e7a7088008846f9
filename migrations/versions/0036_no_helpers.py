"""Drop the tables of helpers. What is not yet charged for a help is added to its owner's usage; all
helps were on CPU workers, whose seconds have the weight 1."""

import sqlalchemy as sa
from alembic import op

from service.db.engine import LargeId

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

UNCHARGED = "NOT folded AND started_at IS NOT NULL"
END = "coalesce(ended_at, lease_expires_at)"
"""End of a help. At an upgrade all workers are stopped, and a lease ends with its worker."""


def upgrade() -> None:
    op.execute(
        "INSERT INTO usage (owner_id, slot_s, as_of) "
        f"SELECT owner_id, 0, max({END}) FROM helps WHERE {UNCHARGED} "
        "AND owner_id NOT IN (SELECT owner_id FROM usage) GROUP BY owner_id"
    )
    op.execute(
        "UPDATE usage SET slot_s = slot_s + coalesce("
        f"(SELECT sum({END} - started_at) FROM helps WHERE {UNCHARGED} "
        f"AND helps.owner_id = usage.owner_id AND {END} > started_at), 0)"
    )
    for table in ("helps", "sent_batches", "divided_runs"):
        op.drop_table(table)


def downgrade() -> None:
    op.create_table(
        "divided_runs",
        _experiment_id("divided_runs"),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("next", sa.Integer(), nullable=False),
        sa.Column("plans", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("experiment_id", name="pk_divided_runs"),
    )
    op.create_table(
        "sent_batches",
        _experiment_id("sent_batches"),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("help_id", LargeId, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("experiment_id", "attempt", "number", name="pk_sent_batches"),
    )
    op.create_table(
        "helps",
        sa.Column("id", LargeId, nullable=False),
        _experiment_id("helps"),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column(
            "owner_id",
            sa.Integer(),
            sa.ForeignKey("users.id", name="fk_helps_owner_id_users"),
            nullable=False,
        ),
        sa.Column("queue", sa.String(16), nullable=False),
        sa.Column("worker", sa.String(200)),
        sa.Column("dispatched_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("lease_expires_at", sa.Double()),
        sa.Column("must_stop", sa.Boolean(), nullable=False),
        sa.Column("batches", sa.Integer(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("reason", sa.String(200)),
        sa.Column("barred", sa.String(16)),
        sa.Column("folded", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_helps"),
    )
    _index("folded_owner_id", "folded", "owner_id")
    _index("experiment_id_attempt", "experiment_id", "attempt")
    _index("active", "worker", where="ended_at IS NULL")
    _index("barred", "experiment_id", "attempt", where="barred IS NOT NULL")
    _index("ended_at", "ended_at", where="ended_at IS NOT NULL")


def _experiment_id(table: str) -> sa.Column[str]:
    key = sa.ForeignKey("experiments.id", name=f"fk_{table}_experiment_id_experiments")
    return sa.Column("experiment_id", sa.String(32), key, nullable=False)


def _index(name: str, *columns: str, where: str | None = None) -> None:
    condition = None if where is None else sa.text(where)
    op.create_index(
        f"ix_helps_{name}",
        "helps",
        [*columns],
        sqlite_where=condition,
        postgresql_where=condition,
    )
