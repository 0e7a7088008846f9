"""shares and limits of users, the ledger of attempts, and what runs take of their devices."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

EXPERIMENTS = sa.table(
    "experiments",
    *map(sa.column, ("id", "attempt", "owner_id", "queue", "worker", "status")),
    *(sa.column(name, sa.Float) for name in ("dispatched_at", "started_at")),
    sa.column("spec", sa.JSON),
)
ATTEMPTS = sa.table(
    "attempts",
    *map(sa.column, ("experiment_id", "attempt", "owner_id", "queue", "worker", "family")),
    sa.column("started_at", sa.Float),
    sa.column("folded", sa.Boolean),
)


def upgrade() -> None:
    with op.batch_alter_table("users") as batch_op:
        batch_op.add_column(sa.Column("shares", sa.Integer(), nullable=False, server_default="1"))
        batch_op.add_column(sa.Column("max_running", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("max_submitted", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("max_gpu_hours_a_day", sa.Double(), nullable=True))
        batch_op.add_column(
            sa.Column("may_jump", sa.Boolean(), nullable=False, server_default=sa.false())
        )
    with op.batch_alter_table("experiments") as batch_op:
        batch_op.add_column(sa.Column("memory_bytes", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("estimated_bytes", sa.BigInteger(), nullable=True))
        batch_op.drop_index("ix_experiments_queue")
        batch_op.create_index(
            "ix_experiments_queue", ["status", "owner_id", "device", "priority", "id"]
        )
    with op.batch_alter_table("workers") as batch_op:
        batch_op.add_column(sa.Column("gpu_number", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("gpu_uuid", sa.String(80), nullable=True))
        batch_op.add_column(sa.Column("gpu_memory_ours", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("run_memory", sa.BigInteger(), nullable=True))
    _create_ledger()
    op.execute(ATTEMPTS.insert().from_select(*_under_way()))


def _create_ledger() -> None:
    op.create_table(
        "attempts",
        sa.Column("experiment_id", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("queue", sa.String(16), nullable=False),
        sa.Column("worker", sa.String(200), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("folded", sa.Boolean(), nullable=False),
        sa.Column("family", sa.String(32), nullable=False),
        sa.Column("estimated_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_bytes", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], "fk_attempts_experiment_id_experiments"
        ),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], "fk_attempts_owner_id_users"),
        sa.PrimaryKeyConstraint("experiment_id", "attempt", name="pk_attempts"),
    )
    op.create_index("ix_attempts_folded_owner_id", "attempts", ["folded", "owner_id"])
    op.create_index("ix_attempts_queue_ended_at", "attempts", ["queue", "ended_at"])
    op.create_index(
        "ix_attempts_family_queue_ended_at", "attempts", ["family", "queue", "ended_at"]
    )
    op.create_table(
        "usage",
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("slot_s", sa.Double(), nullable=False),
        sa.Column("as_of", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], "fk_usage_owner_id_users"),
        sa.PrimaryKeyConstraint("owner_id", name="pk_usage"),
    )


def _under_way() -> tuple[list[str], sa.Select[tuple[object, ...]]]:
    """Count running experiments from their dispatch."""
    one = EXPERIMENTS.c
    row = {
        "experiment_id": one.id,
        "attempt": one.attempt,
        "owner_id": one.owner_id,
        "queue": sa.func.coalesce(one.queue, "cpu"),
        "worker": sa.func.coalesce(one.worker, ""),
        "family": one.spec["model"]["family"].as_string(),
        "started_at": sa.func.coalesce(one.dispatched_at, one.started_at),
        "folded": sa.false(),
    }
    return list(row), sa.select(*row.values()).where(one.status == "running")


def downgrade() -> None:
    op.drop_table("usage")
    op.drop_table("attempts")
    with op.batch_alter_table("workers") as batch_op:
        for name in ("run_memory", "gpu_memory_ours", "gpu_uuid", "gpu_number"):
            batch_op.drop_column(name)
    with op.batch_alter_table("experiments") as batch_op:
        batch_op.drop_index("ix_experiments_queue")
        batch_op.drop_column("estimated_bytes")
        batch_op.drop_column("memory_bytes")
        batch_op.create_index("ix_experiments_queue", ["status", "device", "priority", "id"])
    with op.batch_alter_table("users") as batch_op:
        for name in ("may_jump", "max_gpu_hours_a_day", "max_submitted", "max_running", "shares"):
            batch_op.drop_column(name)
