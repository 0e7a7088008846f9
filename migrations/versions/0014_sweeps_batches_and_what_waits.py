"""sweeps, batches, experiments that come after others, and the cache of results."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

IN_A_SWEEP = sa.text("sweep_id IS NOT NULL")
HAS_KEY = sa.text("cache_key IS NOT NULL")
QUEUE = "ix_experiments_queue"


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("visibility", sa.String(8), nullable=False, server_default="private"),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.Column("name", sa.String(200), nullable=True),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("fields", sa.JSON(), nullable=False),
        sa.Column("comes_after", sa.JSON(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=True),
        sa.Column("holds", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], "fk_sweeps_owner_id_users"),
        sa.PrimaryKeyConstraint("id", name="pk_sweeps"),
    )
    op.create_index("ix_sweeps_owner_id_id", "sweeps", ["owner_id", "id"])
    holds = sa.text("holds")
    op.create_index("ix_sweeps_holds", "sweeps", ["id"], sqlite_where=holds, postgresql_where=holds)
    with op.batch_alter_table("experiments") as batch_op:
        batch_op.add_column(sa.Column("sweep_id", sa.String(32), nullable=True))
        batch_op.add_column(sa.Column("comes_after", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("cache_key", sa.String(64), nullable=True))
        batch_op.add_column(sa.Column("held", sa.String(8), nullable=False, server_default=""))
        batch_op.create_foreign_key(
            "fk_experiments_sweep_id_sweeps", "sweeps", ["sweep_id"], ["id"]
        )
        batch_op.drop_index(QUEUE)
        batch_op.create_index(QUEUE, ["status", "owner_id", "held", "device", "priority", "id"])
    op.create_index(
        "ix_experiments_sweep",
        "experiments",
        ["sweep_id", "status", "held", "id"],
        sqlite_where=IN_A_SWEEP,
        postgresql_where=IN_A_SWEEP,
    )
    op.create_index(
        "ix_experiments_cache_key",
        "experiments",
        ["cache_key"],
        sqlite_where=HAS_KEY,
        postgresql_where=HAS_KEY,
    )
    _create_links()


def _create_links() -> None:
    op.create_table(
        "sweep_points",
        sa.Column("sweep_id", sa.String(32), nullable=False),
        sa.Column("point", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("experiment_id", sa.String(32), nullable=False),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], "fk_sweep_points_sweep_id_sweeps"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], "fk_sweep_points_experiment_id_experiments"
        ),
        sa.PrimaryKeyConstraint("sweep_id", "point", name="pk_sweep_points"),
    )
    op.create_index("ix_sweep_points_experiment_id", "sweep_points", ["experiment_id"])
    op.create_table(
        "waits",
        sa.Column("experiment_id", sa.String(32), nullable=False),
        sa.Column("after_id", sa.String(32), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], "fk_waits_experiment_id_experiments"
        ),
        sa.ForeignKeyConstraint(["after_id"], ["experiments.id"], "fk_waits_after_id_experiments"),
        sa.PrimaryKeyConstraint("experiment_id", "after_id", name="pk_waits"),
    )
    op.create_index("ix_waits_after_id", "waits", ["after_id"])
    op.create_table(
        "requests",
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.String(200), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("made", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], "fk_requests_owner_id_users"),
        sa.PrimaryKeyConstraint("owner_id", "idempotency_key", name="pk_requests"),
    )


def downgrade() -> None:
    for table in ("requests", "waits", "sweep_points"):
        op.drop_table(table)
    op.drop_index("ix_experiments_cache_key", "experiments")
    op.drop_index("ix_experiments_sweep", "experiments")
    with op.batch_alter_table("experiments") as batch_op:
        batch_op.drop_index(QUEUE)
        batch_op.drop_constraint("fk_experiments_sweep_id_sweeps", type_="foreignkey")
        for name in ("held", "cache_key", "comes_after", "sweep_id"):
            batch_op.drop_column(name)
        batch_op.create_index(QUEUE, ["status", "owner_id", "device", "priority", "id"])
    op.drop_table("sweeps")
