"""Tables of version 0.2: roles, shares, sweeps, events as streams, attempts, audit and more.

Names of keys and indexes follow the naming convention of `service.db.engine.Base`. The triggers
are created last: SQLite makes a table anew to alter it, and forgets its triggers. A later migration
that does so with `experiments`, `audit` or `events` has to create them again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0008"
branch_labels = None
depends_on = None

MEMBER_SCOPES = ["read", "submit", "cancel", "metrics"]
LARGE_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NULLABLE_JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    _alter_users()
    _create_sweeps()
    _alter_experiments()
    _create_attempts()
    _create_waits()
    _create_requests()
    _create_webhooks()
    _create_sign_ins()
    _alter_files()
    _alter_workers()
    _create_audit()
    _alter_events()
    _count_bytes()
    _create_tallies()


def downgrade() -> None:
    raise NotImplementedError("to go back to version 0.1, restore its backup")


def _postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _index(table: str, name: str, columns: list[str], where: str | None = None) -> None:
    """Create an index, a partial one if there is a condition."""
    condition = None if where is None else sa.text(where)
    op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)


def _visibility() -> sa.Column[str]:
    return sa.Column("visibility", sa.String(8), nullable=False, server_default="private")


def _alter_users() -> None:
    """Add roles, scopes and limits. Keys may do what they could; the local user may do all."""
    with op.batch_alter_table("users") as table:
        table.add_column(sa.Column("role", sa.String(16), nullable=False, server_default="member"))
        table.add_column(sa.Column("disabled_at", sa.Double()))
        table.add_column(sa.Column("shares", sa.Integer(), nullable=False, server_default="1"))
        table.add_column(sa.Column("max_running", sa.Integer()))
        table.add_column(sa.Column("max_submitted", sa.Integer()))
        table.add_column(sa.Column("max_gpu_hours_a_day", sa.Double()))
        table.add_column(
            sa.Column("may_jump", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        table.add_column(sa.Column("max_bytes", sa.BigInteger()))
    op.execute("UPDATE users SET role = 'admin' WHERE name = 'local'")
    with op.batch_alter_table("api_keys") as table:
        table.add_column(sa.Column("name", sa.String(200)))
        table.add_column(sa.Column("scopes", sa.JSON()))
        table.add_column(sa.Column("expires_at", sa.Double()))
        table.add_column(sa.Column("last_used_at", sa.Double()))
    keys = sa.table("api_keys", sa.column("user_id"), sa.column("scopes", sa.JSON))
    op.execute(keys.update().values(scopes=MEMBER_SCOPES))
    admins = sa.text("user_id IN (SELECT id FROM users WHERE role = 'admin')")
    op.execute(keys.update().where(admins).values(scopes=["read", "submit", "cancel", "admin",
                                                          "metrics"]))  # fmt: skip
    with op.batch_alter_table("api_keys") as table:
        table.alter_column("scopes", existing_type=sa.JSON(), nullable=False)


def _create_sweeps() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False),
        _visibility(),
        sa.Column("deleted_at", sa.Double()),
        sa.Column("name", sa.String(200)),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("fields", sa.JSON(), nullable=False),
        sa.Column("comes_after", sa.JSON(), nullable=False),
        sa.Column("concurrency", sa.Integer()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Index("ix_sweeps_owner_id_id", "owner_id", "id"),
    )
    op.create_table(
        "sweep_points",
        sa.Column("sweep_id", sa.String(32), sa.ForeignKey("sweeps.id"), primary_key=True),
        sa.Column("point", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("experiment_id", sa.String(32), sa.ForeignKey("experiments.id"),
                  nullable=False, index=True),
    )  # fmt: skip
    op.create_table(
        "turns",
        sa.Column("id", LARGE_ID, primary_key=True),
        sa.Column("sweep_id", sa.String(32), nullable=False),
    )


EXPERIMENTS = sa.table("experiments", sa.column("spec", sa.JSON), sa.column("device"),
                       sa.column("family"))  # fmt: skip


def _alter_experiments() -> None:
    with op.batch_alter_table("experiments") as table:
        table.add_column(sa.Column("device", sa.String(8)))
        table.add_column(_visibility())
        table.add_column(
            sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        table.add_column(sa.Column("deleted_at", sa.Double()))
        table.add_column(sa.Column("memory_bytes", sa.BigInteger()))
        table.add_column(sa.Column("estimated_bytes", sa.BigInteger()))
        table.add_column(sa.Column("family", sa.String(32)))
        table.add_column(sa.Column("sweep_id", sa.String(32)))
        table.add_column(sa.Column("comes_after", sa.JSON()))
        table.add_column(sa.Column("cache_key", sa.String(64)))
        table.add_column(sa.Column("held", sa.String(8), nullable=False, server_default=""))
        table.add_column(sa.Column("progress_stage", NULLABLE_JSON))
        table.add_column(sa.Column("progress_at", sa.Double()))
        table.add_column(sa.Column("progress_eta_s", sa.Double()))
        for name in ("spec_bytes", "expected_bytes"):
            table.add_column(sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    spec = EXPERIMENTS.c.spec
    op.execute(
        EXPERIMENTS.update().values(
            device=sa.func.coalesce(spec["compute"]["device"].as_string(), "auto"),
            family=sa.func.coalesce(spec["model"]["family"].as_string(), "ppca"),
        )
    )
    op.execute("UPDATE experiments SET spec_bytes = length(CAST(spec AS TEXT))")


def _index_experiments() -> None:
    for columns in (
        ["created_at", "id"],
        ["owner_id", "created_at", "id"],
        ["owner_id", "finished_at", "id"],
        ["owner_id", "name", "id"],
        ["owner_id", "family", "created_at", "id"],
    ):
        _index("experiments", f"ix_experiments_{'_'.join(columns)}", columns)
    for name, columns, where in (
        ("shared", ["created_at", "id"], "visibility = 'lab'"),
        ("deleted_at", ["deleted_at"], "deleted_at IS NOT NULL"),
        ("sweep", ["sweep_id", "status", "held", "id"], "sweep_id IS NOT NULL"),
        ("cache_key", ["cache_key"], "cache_key IS NOT NULL"),
        ("queued", ["created_at"], "status = 'queued'"),
    ):
        _index("experiments", f"ix_experiments_{name}", columns, where)
    if _postgresql():  # elements of a list, and values of a field of a spec
        for column in ("tags", "spec"):
            op.create_index(f"ix_experiments_{column}", "experiments",
                            [sa.text(f"({column}::jsonb) jsonb_path_ops")],
                            postgresql_using="gin")  # fmt: skip
    _index("metrics", "ix_metrics_name_value_experiment_id", ["name", "value", "experiment_id"])


def _create_attempts() -> None:
    """Create the ledger. Current runs count from their dispatch."""
    op.create_table(
        "attempts",
        sa.Column("experiment_id", sa.String(32), sa.ForeignKey("experiments.id"),
                  primary_key=True),
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
        sa.Column("environment", NULLABLE_JSON),
        sa.Index("ix_attempts_folded_owner_id", "folded", "owner_id"),
        sa.Index("ix_attempts_queue_ended_at", "queue", "ended_at"),
        sa.Index("ix_attempts_family_queue_ended_at", "family", "queue", "ended_at"),
    )  # fmt: skip
    _index("attempts", "ix_attempts_telling", ["family", "queue", "ended_at"],
           "peak_bytes IS NOT NULL AND estimated_bytes >= 67108864")  # fmt: skip
    op.execute(
        "INSERT INTO attempts (experiment_id, attempt, owner_id, queue, worker, family, started_at,"
        " folded) SELECT id, attempt, owner_id, coalesce(queue, 'cpu'), coalesce(worker, ''),"
        " family, coalesce(dispatched_at, started_at), false"
        " FROM experiments WHERE status = 'running'"
    )
    op.create_table(
        "usage",
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), primary_key=True),
        sa.Column("slot_s", sa.Double(), nullable=False),
        sa.Column("as_of", sa.Double(), nullable=False),
    )  # fmt: skip


def _create_waits() -> None:
    op.create_table(
        "waits",
        sa.Column("experiment_id", sa.String(32), sa.ForeignKey("experiments.id"),
                  primary_key=True),
        sa.Column("after_id", sa.String(32), sa.ForeignKey("experiments.id"), primary_key=True,
                  index=True),
    )  # fmt: skip


def _create_requests() -> None:
    """Create the table of idempotent requests, and move the keys of experiments to it. Their bodies
    are not known: the method and the path stand for them."""
    op.create_table(
        "requests",
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), primary_key=True),
        sa.Column("idempotency_key", sa.String(200), primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("made", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
    )  # fmt: skip
    made = """'[{"id": "' || id || '", "cached_from": null}]'"""
    op.get_bind().exec_driver_sql(
        "INSERT INTO requests (owner_id, idempotency_key, sha256, made, created_at) "
        "SELECT owner_id, idempotency_key, 'POST /v1/experiments' || CASE WHEN retry_of IS NULL "
        "THEN '' ELSE '/' || retry_of || ':retry' END, "
        f"{f'CAST({made} AS JSON)' if _postgresql() else made}, created_at "
        "FROM experiments WHERE idempotency_key IS NOT NULL"
    )
    queue = "ix_experiments_queue"
    with op.batch_alter_table("experiments") as table:
        table.drop_constraint("uq_experiments_owner_id_idempotency_key", type_="unique")
        table.drop_column("submission_sha256")
        table.drop_column("idempotency_key")
        table.alter_column("device", existing_type=sa.String(8), nullable=False)
        table.alter_column("family", existing_type=sa.String(32), nullable=False)
        table.create_foreign_key("fk_experiments_sweep_id_sweeps", "sweeps", ["sweep_id"], ["id"])
        table.drop_index(queue)
        table.create_index(queue, ["status", "owner_id", "held", "device", "priority", "id"])
    _index_experiments()


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
        sa.Column("experiment_id", sa.String(32), sa.ForeignKey("experiments.id"),
                  primary_key=True, index=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Double()),
        sa.Column("delivered_at", sa.Double()),
        sa.Column("given_up_at", sa.Double()),
        sa.Column("last_error", sa.Text()),
    )  # fmt: skip
    _index("deliveries", "ix_deliveries_next_at", ["next_at"], "next_at IS NOT NULL")


def _create_sign_ins() -> None:
    op.create_table(
        "sign_ins",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("key_id", sa.String(16), sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("secret_sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("previous_sha256", sa.LargeBinary(32)),
        sa.Column("renewed_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "sign_in_codes",
        sa.Column("sha256", sa.LargeBinary(32), primary_key=True),
        sa.Column("key_id", sa.String(16), sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
    )


def _alter_files() -> None:
    with op.batch_alter_table("datasets") as table:
        table.add_column(_visibility())
        table.add_column(sa.Column("constant", NULLABLE_JSON))
        table.add_column(sa.Column("missing", NULLABLE_JSON))
    op.add_column("artifacts", sa.Column("bytes", sa.BigInteger()))
    with op.batch_alter_table("checkpoints") as table:
        table.add_column(sa.Column("bytes", sa.BigInteger()))
        table.drop_constraint("pk_checkpoints", type_="primary")
        table.create_primary_key("pk_checkpoints", ["experiment_id", "file"])


def _alter_workers() -> None:
    with op.batch_alter_table("workers") as table:
        table.add_column(sa.Column("gpu_number", sa.Integer()))
        table.add_column(sa.Column("gpu_uuid", sa.String(80)))
        table.add_column(sa.Column("gpu_memory_ours", sa.BigInteger()))
        table.add_column(sa.Column("run_memory", sa.BigInteger()))
    op.create_table(
        "worker_samples",
        sa.Column("minute", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("worker_id", sa.String(200), primary_key=True),
        sa.Column("busy", sa.Boolean(), nullable=False),
        sa.Column("memory_free", sa.BigInteger()),
        sa.Column("memory_total", sa.BigInteger()),
    )


def _create_audit() -> None:
    """Create a table that refuses changes. SQLite's INSERT OR REPLACE fires no delete trigger."""
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
    if _postgresql():
        op.execute(
            "CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the audit is append-only'; END $$"
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
            "BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END"
        )


WRITERS_LOCK = 7_301_524
"""`service.events.changes.WRITERS_LOCK`"""


def _alter_events() -> None:
    """Give no id of an event twice, and let writers of events hold a lock that readers see."""
    if not _postgresql():  # one writer at a time
        with op.batch_alter_table(
            "events", recreate="always", table_kwargs={"sqlite_autoincrement": True}
        ):
            return
    op.execute(
        "CREATE FUNCTION note_event_writer() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM pg_advisory_xact_lock_shared({WRITERS_LOCK}); RETURN NULL; END $$"
    )
    # Once for a statement, before its first row: that is, before an id is taken from the sequence.
    op.execute(
        "CREATE TRIGGER note_event_writer BEFORE INSERT ON events "
        "FOR EACH STATEMENT EXECUTE FUNCTION note_event_writer()"
    )


KEPT = """
SELECT owner_id, spec_bytes AS size FROM experiments
UNION ALL SELECT owner_id, bytes FROM datasets
UNION ALL SELECT owner_id, length(CAST(arrays AS TEXT)) FROM datasets
    WHERE CAST(arrays AS TEXT) <> 'null'
UNION ALL SELECT owner_id, length(CAST(columns AS TEXT)) FROM datasets
    WHERE CAST(columns AS TEXT) <> 'null'
UNION ALL SELECT owner_id, length(CAST(made AS TEXT)) FROM requests
UNION ALL SELECT e.owner_id,
    length(b.x) + length(b.value) + length(b.std_err) + length(b.n) + coalesce(length(b.seq), 0)
    + length(b.reason) + length(CAST(b.reasons AS TEXT))
    FROM blocks b JOIN series s ON s.id = b.series_id JOIN experiments e ON e.id = s.experiment_id
UNION ALL SELECT e.owner_id,
    16 + length(m.name) + length(m.labels) + coalesce(length(m.reason), 0)
    FROM metrics m JOIN experiments e ON e.id = m.experiment_id
UNION ALL SELECT e.owner_id, length(CAST(v.data AS TEXT))
    FROM events v JOIN experiments e ON e.id = v.experiment_id WHERE v.seq IS NOT NULL
"""
"""Bytes that users keep. Artifacts are measured later, and the next checkpoints replace these."""


def _count_bytes() -> None:
    op.create_table(
        "byte_changes",
        sa.Column("id", LARGE_ID, primary_key=True),
        sa.Column("owner_id", sa.Integer(), nullable=False, index=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
    )
    op.execute(
        "INSERT INTO byte_changes (owner_id, bytes) "
        f"SELECT owner_id, sum(size) FROM ({KEPT}) AS kept GROUP BY owner_id"
    )


COUNTED = ("number", "present", "lost", "waits", "waits_s", "runs", "runs_s")
TERMINAL = "('succeeded', 'failed', 'cancelled')"
INTO = f"INSERT INTO tallies (status, failure_kind, {', '.join(COUNTED)})"


def _of(row: str) -> str:
    """Counts that an ended experiment adds."""
    return (
        f"{row}status, COALESCE({row}failure_kind, ''), 1, 1, {row}lost, "
        f"CASE WHEN {row}started_at IS NULL THEN 0 ELSE 1 END, "
        f"COALESCE({row}started_at - {row}created_at, 0), "
        f"CASE WHEN {row}finished_at - {row}started_at IS NULL THEN 0 ELSE 1 END, "
        f"COALESCE({row}finished_at - {row}started_at, 0)"
    )


ADD = f"{INTO} SELECT {_of('NEW.')};"
GONE = f"{INTO} SELECT OLD.status, COALESCE(OLD.failure_kind, ''), 0, -1, 0, 0, 0, 0, 0;"
TRIGGERS = {
    "tally_inserted": ("INSERT", f"NEW.status IN {TERMINAL}", ADD),
    "tally_ended": (
        "UPDATE OF status",
        f"NEW.status IN {TERMINAL} AND OLD.status NOT IN {TERMINAL}",
        ADD,
    ),
    "tally_gone": ("DELETE", f"OLD.status IN {TERMINAL}", GONE),
}


def _create_tallies() -> None:
    """Create counters of what has ended, kept by triggers."""
    op.create_table(
        "tallies",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("failure_kind", sa.String(16), nullable=False),
        *(
            sa.Column(name, sa.Double() if name.endswith("_s") else sa.BigInteger(), nullable=False)
            for name in COUNTED
        ),
    )
    op.execute(f"{INTO} SELECT {_of('')} FROM experiments WHERE status IN {TERMINAL}")
    for name, (deed, condition, statement) in TRIGGERS.items():
        body = f"BEGIN {statement} END"
        if _postgresql():
            op.execute(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN {statement} RETURN NULL; END $$"
            )
            body = f"EXECUTE FUNCTION {name}()"
        op.execute(
            f"CREATE TRIGGER {name} AFTER {deed} ON experiments FOR EACH ROW WHEN ({condition}) "
            f"{body}"
        )
