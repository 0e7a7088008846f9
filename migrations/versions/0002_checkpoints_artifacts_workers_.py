"""checkpoints, artifacts, workers, idempotency."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("host", sa.String(length=200), nullable=False),
        sa.Column("queue", sa.String(length=16), nullable=False),
        sa.Column("memory_free", sa.BigInteger(), nullable=False),
        sa.Column("gpu", sa.String(length=200), nullable=True),
        sa.Column("gpu_driver", sa.String(length=50), nullable=True),
        sa.Column("gpu_memory_total", sa.BigInteger(), nullable=True),
        sa.Column("gpu_memory_free", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_table(
        "artifacts",
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("file", sa.String(length=200), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("media_type", sa.String(length=100), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_artifacts_experiment_id_experiments"),
        ),
        sa.PrimaryKeyConstraint("experiment_id", "file", name=op.f("pk_artifacts")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("after_seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("file", sa.String(length=500), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_checkpoints_experiment_id_experiments"),
        ),
        sa.PrimaryKeyConstraint(
            "experiment_id", "after_seq", "attempt", name=op.f("pk_checkpoints")
        ),
    )
    with op.batch_alter_table("experiments", schema=None) as batch_op:
        batch_op.add_column(sa.Column("retry_of", sa.String(length=32), nullable=True))
        batch_op.add_column(sa.Column("idempotency_key", sa.String(length=200), nullable=True))
        batch_op.add_column(sa.Column("submission_sha256", sa.String(length=64), nullable=True))
        batch_op.add_column(sa.Column("queue", sa.String(length=16), nullable=True))
        batch_op.create_unique_constraint(
            batch_op.f("uq_experiments_owner_id_idempotency_key"), ["owner_id", "idempotency_key"]
        )


def downgrade() -> None:
    with op.batch_alter_table("experiments", schema=None) as batch_op:
        batch_op.drop_constraint(
            batch_op.f("uq_experiments_owner_id_idempotency_key"), type_="unique"
        )
        batch_op.drop_column("queue")
        batch_op.drop_column("submission_sha256")
        batch_op.drop_column("idempotency_key")
        batch_op.drop_column("retry_of")

    op.drop_table("checkpoints")
    op.drop_table("artifacts")
    op.drop_table("workers")
