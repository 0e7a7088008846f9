"""Create the tables.

Names of keys and indexes follow the naming convention of `service.db.engine.Base`. Where Alembic
copies a table of SQLite to alter it, triggers are lost: a later revision that does so with `audit`
creates them again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = None
branch_labels = None
depends_on = None

NULLABLE_JSON = sa.JSON(none_as_null=True)
PARTIAL_INDEXES = {
    "cache_key": ("cache_key IS NOT NULL", "cache_key", "status", "owner_id"),
    "deleted_at": ("deleted_at IS NOT NULL", "deleted_at"),
    "held": ("status = 'queued' AND held = 'sweep'", "status", "held", "sweep_id", "id"),
    "large_spec": ("spec_bytes > 2048", "owner_id", "id"),
    "never_started": (
        "status = 'cancelled' AND attempt = 0 AND sweep_id IS NULL", "finished_at", "id"
    ),
    "queued": ("status = 'queued'", "created_at"),
    "retry_of": ("retry_of IS NOT NULL", "retry_of"),
    "running": ("status = 'running'", "owner_id", "queue"),
    "shared": ("visibility = 'lab'", "created_at", "id"),
    "sweep": ("sweep_id IS NOT NULL", "sweep_id", "status", "held", "id"),
    "unmeasured": ("record_bytes IS NULL", "id"),
}  # fmt: skip
"""Condition and columns of indexes of some experiments, by name."""


def upgrade() -> None:
    _create_users()
    _create_experiments()
    _create_queue()
    _create_records()
    _create_files()
    _create_workers()
    _create_webhooks()


def downgrade() -> None:
    raise NotImplementedError("to go back to an earlier version, restore its backup")


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _index(
    table: str,
    *columns: str | sa.TextClause,
    name: str | None = None,
    where: str | None = None,
    using: str | None = None,
) -> None:
    """Create an index, a partial one if there is a condition. Its name is that of its columns if
    none is given."""
    condition = None if where is None else sa.text(where)
    op.create_index(
        f"ix_{table}_{name or '_'.join(map(str, columns))}",
        table,
        columns,
        sqlite_where=condition,
        postgresql_where=condition,
        postgresql_using=using,
    )


def _create_users() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False, unique=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("role", sa.String(16), nullable=False, server_default="member"),
        sa.Column("disabled_at", sa.Double()),
        sa.Column("shares", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("max_running", sa.Integer()),
        sa.Column("max_submitted", sa.Integer()),
        sa.Column("max_gpu_hours_a_day", sa.Double()),
        sa.Column("max_bytes", sa.BigInteger()),
        sa.Column("may_jump", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("user_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("name", sa.String(200)),
        sa.Column("secret_sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
        sa.Column("last_used_at", sa.Double()),
        sa.Column("link_used_at", sa.Double()),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("key_id", sa.String(16)),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("object_id", sa.String(100), nullable=False, index=True),
        sa.Column("details", sa.JSON(), nullable=False),
    )
    _make_audit_append_only()


def _make_audit_append_only() -> None:
    """Refuse changes of the rows. SQLite's INSERT OR REPLACE fires no delete trigger."""
    refusal = "'the audit is append-only'"
    if _is_postgresql():
        op.execute(
            f"CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION {refusal}; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
            "FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()"
        )
        return
    exists = "WHEN EXISTS (SELECT 1 FROM audit WHERE id = NEW.id) "
    for name, deed, when in (
        ("UPDATE", "UPDATE", ""),
        ("DELETE", "DELETE", ""),
        ("replace", "INSERT", exists),
    ):
        op.execute(
            f"CREATE TRIGGER audit_no_{name} BEFORE {deed} ON audit {when}"
            f"BEGIN SELECT RAISE(ABORT, {refusal}); END"
        )


def _create_experiments() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False),
        sa.Column("deleted_at", sa.Double()),
        sa.Column("name", sa.String(200)),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("fields", sa.JSON(), nullable=False),
        sa.Column("comes_after", sa.JSON(), nullable=False),
        sa.Column("concurrency", sa.Integer()),
        sa.Column("kept_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("visibility", sa.String(8), nullable=False, server_default="private"),
    )
    op.create_table(
        "experiments",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("deleted_at", sa.Double()),
        sa.Column("name", sa.String(200)),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("device", sa.String(8), nullable=False),
        sa.Column("family", sa.String(32), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger()),
        sa.Column("estimated_bytes", sa.BigInteger()),
        sa.Column("gpu_part_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("spec_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("expected_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("record_bytes", sa.BigInteger(), server_default="0"),
        sa.Column("retry_of", sa.String(32)),
        sa.Column("sweep_id", sa.String(32), sa.ForeignKey("sweeps.id")),
        sa.Column("comes_after", NULLABLE_JSON),
        sa.Column("held", sa.String(8), nullable=False, server_default=""),
        sa.Column("cache_key", sa.String(64)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("desired_state", sa.String(16), nullable=False),
        sa.Column("queue", sa.String(16)),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(200)),
        sa.Column("lease_expires_at", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("progress_done", sa.BigInteger()),
        sa.Column("progress_total", sa.BigInteger()),
        sa.Column("progress_unit", sa.String(32)),
        sa.Column("progress_stage", NULLABLE_JSON),
        sa.Column("progress_at", sa.Double()),
        sa.Column("progress_eta_s", sa.Double()),
        sa.Column("failure_kind", sa.String(16)),
        sa.Column("failure_message", sa.Text()),
        sa.Column("visibility", sa.String(8), nullable=False, server_default="private"),
    )
    op.create_table(
        "sweep_points",
        sa.Column("sweep_id", sa.String(32), sa.ForeignKey("sweeps.id"), primary_key=True),
        sa.Column("point", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column(
            "experiment_id",
            sa.String(32),
            sa.ForeignKey("experiments.id"),
            nullable=False,
            index=True,
        ),
    )
    op.create_table(
        "waits",
        sa.Column(
            "experiment_id", sa.String(32), sa.ForeignKey("experiments.id"), primary_key=True
        ),
        sa.Column(
            "after_id", sa.String(32), sa.ForeignKey("experiments.id"), primary_key=True, index=True
        ),
    )
    op.create_table(
        "requests",
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), primary_key=True),
        sa.Column("idempotency_key", sa.String(200), primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("made", sa.JSON(), nullable=False),
        sa.Column("kept_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    _index("sweeps", "owner_id", "id")
    _index("requests", "owner_id", "kept_bytes")
    _index_experiments()


def _index_experiments() -> None:
    for columns in (
        ("owner_id", "id"),
        ("owner_id", "created_at", "id"),
        ("owner_id", "finished_at", "id"),
        ("owner_id", "name", "id"),
        ("owner_id", "family", "created_at", "id"),
        ("created_at", "id"),
        ("status", "owner_id"),
    ):
        _index("experiments", *columns)
    _index("experiments", "owner_id", "spec_bytes", "record_bytes", name="kept")
    for name, (condition, *some) in PARTIAL_INDEXES.items():
        _index("experiments", *some, name=name, where=condition)
    startable = ("owner_id", sa.text("priority DESC"), "id", "memory_bytes")
    for queue, other in (("cpu", "cuda"), ("gpu", "cpu")):
        where = f"status = 'queued' AND held = '' AND device <> '{other}'"
        _index("experiments", *startable, name=f"startable_{queue}", where=where)
    if _is_postgresql():  # elements of a list, and values of a field of a spec
        for column, small in (("tags", None), ("spec", "spec_bytes <= 2048")):
            inside = sa.text(f"({column}::jsonb) jsonb_path_ops")
            _index("experiments", inside, name=column, where=small, using="gin")


def _create_queue() -> None:
    op.create_table(
        "attempts",
        sa.Column(
            "experiment_id", sa.String(32), sa.ForeignKey("experiments.id"), primary_key=True
        ),
        sa.Column("attempt", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False),
        sa.Column("queue", sa.String(16), nullable=False),
        sa.Column("worker", sa.String(200), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("folded", sa.Boolean(), nullable=False),
        sa.Column("family", sa.String(32), nullable=False),
        sa.Column("estimated_bytes", sa.BigInteger()),
        sa.Column("peak_bytes", sa.BigInteger()),
        sa.Column("outcome", sa.String(16)),
        sa.Column("environment", NULLABLE_JSON),
    )
    op.create_table(
        "usage",
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), primary_key=True),
        sa.Column("settled_s", sa.Double(), nullable=False),
        sa.Column("charged_s", sa.Double(), nullable=False, server_default="0"),
        sa.Column("as_of", sa.Double(), nullable=False),
    )
    op.create_table(
        "totals",
        sa.Column("outcome", sa.String(16), primary_key=True),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("waits", sa.BigInteger(), nullable=False),
        sa.Column("waits_s", sa.Double(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("runs_s", sa.Double(), nullable=False),
    )
    controller = op.create_table(
        "controller",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
    )
    op.bulk_insert(controller, [{"id": 1, "holder": "", "until": 0.0}])
    _index("attempts", "folded", "owner_id")
    _index("attempts", "queue", "ended_at")
    _index("attempts", "family", "queue", "ended_at")
    telling = "peak_bytes IS NOT NULL AND estimated_bytes >= 67108864"
    _index("attempts", "family", "queue", "ended_at", name="telling", where=telling)


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
        sqlite_autoincrement=True,
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
        sa.Column("seq", sa.LargeBinary()),
        sa.Column("x", sa.LargeBinary(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("std_err", sa.LargeBinary(), nullable=False),
        sa.Column("n", sa.LargeBinary(), nullable=False),
        sa.Column("reason", sa.LargeBinary(), nullable=False),
        sa.Column("reasons", sa.JSON(), nullable=False),
    )
    _index("metrics", "name", "value", "experiment_id")


def _create_files() -> None:
    op.create_table(
        "artifacts",
        sa.Column(
            "experiment_id", sa.String(32), sa.ForeignKey("experiments.id"), primary_key=True
        ),
        sa.Column("file", sa.String(200), primary_key=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("media_type", sa.String(100), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("bytes", sa.BigInteger()),
    )
    op.create_table(
        "checkpoints",
        sa.Column(
            "experiment_id", sa.String(32), sa.ForeignKey("experiments.id"), primary_key=True
        ),
        sa.Column("file", sa.String(500), primary_key=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("after_seq", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("bytes", sa.BigInteger()),
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
        sa.Column("constant", NULLABLE_JSON),
        sa.Column("missing", NULLABLE_JSON),
        sa.Column("reading", NULLABLE_JSON),
        sa.Column("options_sha256", sa.String(64), nullable=False, server_default=""),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("kept_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("copy", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("visibility", sa.String(8), nullable=False, server_default="private"),
        sa.UniqueConstraint("owner_id", "sha256", "format", "options_sha256", "copy"),
    )


def _create_workers() -> None:
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
        sa.Column("gpu_number", sa.Integer()),
        sa.Column("gpu_uuid", sa.String(80)),
        sa.Column("gpu_memory_ours", sa.BigInteger()),
        sa.Column("run_memory", sa.BigInteger()),
        sa.Column("memory_pools", NULLABLE_JSON),
        sa.Column("memory_ours", sa.BigInteger()),
        sa.Column("store_full", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("families", sa.JSON(), nullable=False, server_default=sa.text("'[]'")),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.Column("looked_at", sa.Double()),
    )
    op.create_table(
        "worker_samples",
        sa.Column("minute", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("worker_id", sa.String(200), primary_key=True),
        sa.Column("busy", sa.Boolean(), nullable=False),
        sa.Column("memory_free", sa.BigInteger()),
        sa.Column("memory_total", sa.BigInteger()),
    )
    op.create_table(
        "drains",
        sa.Column("host", sa.String(200), primary_key=True),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("hand_back_at", sa.Double(), nullable=False),
        sa.Column("until", sa.Double()),
        sa.Column("drained_by", sa.String(100), nullable=False),
    )


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False, index=True),
        sa.Column("url", sa.String(2000), nullable=False),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("statuses", sa.String(40), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "deliveries",
        sa.Column("webhook_id", sa.String(32), primary_key=True),
        sa.Column(
            "experiment_id",
            sa.String(32),
            sa.ForeignKey("experiments.id"),
            primary_key=True,
            index=True,
        ),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Double()),
        sa.Column("delivered_at", sa.Double()),
        sa.Column("given_up_at", sa.Double()),
        sa.Column("last_error", sa.Text()),
    )
    due = ("webhook_id", "next_at", "experiment_id")
    _index("deliveries", *due, name="due", where="next_at IS NOT NULL")
