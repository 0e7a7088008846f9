"""Tables of version 0.1: users, experiments, their records and files, workers, uploads.

Names of keys and indexes follow the naming convention of `service.db.engine.Base`.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False, unique=True),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("user_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("secret_sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double()),
    )
    _create_experiments()
    _create_records()
    _create_files()
    op.create_table(
        "workers",
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("queue", sa.String(16), nullable=False),
        sa.Column("memory_free", sa.BigInteger(), nullable=False),
        sa.Column("gpu", sa.String(200)),
        sa.Column("gpu_driver", sa.String(50)),
        sa.Column("gpu_memory_total", sa.BigInteger()),
        sa.Column("gpu_memory_free", sa.BigInteger()),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
    )


def _create_experiments() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False),
        sa.Column("name", sa.String(200)),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("desired_state", sa.String(16), nullable=False),
        sa.Column("dispatch_no", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(200)),
        sa.Column("lease_expires_at", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("dispatched_at", sa.Double()),
        sa.Column("started_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("progress_done", sa.BigInteger()),
        sa.Column("progress_total", sa.BigInteger()),
        sa.Column("progress_unit", sa.String(32)),
        sa.Column("failure_kind", sa.String(16)),
        sa.Column("failure_message", sa.Text()),
        sa.Column("retry_of", sa.String(32)),
        sa.Column("idempotency_key", sa.String(200)),
        sa.Column("submission_sha256", sa.String(64)),
        sa.Column("queue", sa.String(16)),
        sa.UniqueConstraint("owner_id", "idempotency_key"),
        sa.Index("ix_experiments_owner_id_id", "owner_id", "id"),
        sa.Index("ix_experiments_queue", "status", "priority", "id"),
    )


def _create_records() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("experiment_id", sa.String(32), sa.ForeignKey("experiments.id"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("seq", sa.Integer()),
        sa.UniqueConstraint("experiment_id", "seq"),
    )
    op.create_table(
        "metrics",
        sa.Column(
            "experiment_id", sa.String(32), sa.ForeignKey("experiments.id"), primary_key=True
        ),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("labels", sa.String(1000), primary_key=True),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("std_err", sa.Double()),
        sa.Column("reason", sa.String(500)),
    )
    op.create_table(
        "series",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("experiment_id", sa.String(32), sa.ForeignKey("experiments.id"), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("labels", sa.String(1000), nullable=False),
        sa.UniqueConstraint("experiment_id", "name", "labels"),
    )
    op.create_table(
        "blocks",
        sa.Column("series_id", sa.Integer(), sa.ForeignKey("series.id"), primary_key=True),
        sa.Column("first_seq", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        *(
            sa.Column(name, sa.LargeBinary(), nullable=False)
            for name in ("x", "value", "std_err", "n", "reason")
        ),
        sa.Column("reasons", sa.JSON(), nullable=False),
        sa.Column("seq", sa.LargeBinary()),
    )


def _create_files() -> None:
    op.create_table(
        "artifacts",
        sa.Column(
            "experiment_id", sa.String(32), sa.ForeignKey("experiments.id"), primary_key=True
        ),
        sa.Column("file", sa.String(200), primary_key=True),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("media_type", sa.String(100), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
    )
    op.create_table(
        "checkpoints",
        sa.Column(
            "experiment_id", sa.String(32), sa.ForeignKey("experiments.id"), primary_key=True
        ),
        sa.Column("after_seq", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("file", sa.String(500), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "datasets",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("format", sa.String(16), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("dim", sa.Integer()),
        sa.Column("arrays", sa.JSON()),
        sa.Column("columns", sa.JSON()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("copy", sa.Integer(), nullable=False, server_default="0"),
        sa.UniqueConstraint("owner_id", "sha256", "format", "copy"),
    )
