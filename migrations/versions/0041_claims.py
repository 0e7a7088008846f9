"""Make a worker claim experiments itself: nothing is dispatched any more. Add the usage that claims
compare, the time when a worker last looked for a run, and the row that elects a controller."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

STARTABLE = {
    "cpu": "status = 'queued' AND held = '' AND device <> 'cuda'",
    "gpu": "status = 'queued' AND held = '' AND device <> 'cpu'",
}
STARTABLE_ORDER: list[str | sa.TextClause] = [
    "owner_id",
    sa.text("priority DESC"),
    "id",
    "memory_bytes",
]
QUEUE = ["status", "owner_id", "held", "device", "priority", "id"]


def upgrade() -> None:
    op.execute("UPDATE experiments SET status = 'queued' WHERE status = 'dispatched'")
    op.drop_index("ix_experiments_queue", "experiments")
    for column in ("dispatch_no", "dispatched_at", "kept_memory"):
        op.drop_column("experiments", column)
    op.create_index("ix_experiments_status_owner_id", "experiments", ["status", "owner_id"])
    for queue, startable in STARTABLE.items():
        _partial_index(f"ix_experiments_startable_{queue}", STARTABLE_ORDER, startable)
    _partial_index("ix_experiments_running", ["owner_id", "queue"], "status = 'running'")
    op.execute("ALTER TABLE usage RENAME COLUMN slot_s TO settled_s")
    op.add_column("usage", sa.Column("charged_s", sa.Double(), server_default="0", nullable=False))
    op.execute("UPDATE usage SET charged_s = settled_s")
    op.add_column("workers", sa.Column("looked_at", sa.Double()))
    controller = op.create_table(
        "controller",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_controller"),
    )
    op.bulk_insert(controller, [{"id": 1, "holder": "", "until": 0.0}])


def _partial_index(name: str, columns: Sequence[str | sa.TextClause], where: str) -> None:
    condition = sa.text(where)
    op.create_index(
        name, "experiments", columns, sqlite_where=condition, postgresql_where=condition
    )


def downgrade() -> None:
    op.drop_table("controller")
    op.drop_column("workers", "looked_at")
    op.drop_column("usage", "charged_s")
    op.execute("ALTER TABLE usage RENAME COLUMN settled_s TO slot_s")
    for name in ("running", "startable_gpu", "startable_cpu", "status_owner_id"):
        op.drop_index(f"ix_experiments_{name}", "experiments")
    number = sa.Column("dispatch_no", sa.Integer(), server_default="0", nullable=False)
    op.add_column("experiments", number)
    op.add_column("experiments", sa.Column("dispatched_at", sa.Double()))
    op.add_column("experiments", sa.Column("kept_memory", sa.String(200)))
    op.create_index("ix_experiments_queue", "experiments", QUEUE)
