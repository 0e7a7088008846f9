"""Carry the tables of version 0.2 over to those of revision 0050, in the migration's transaction.

The tables `turns`, `tallies`, `byte_changes`, `sign_ins` and `sign_in_codes` are dropped. What was
counted in them is in `totals` and in columns of bytes, or is looked up.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic.operations import Operations

NULLABLE_JSON = sa.JSON(none_as_null=True)

ENDED = "e.status IN ('succeeded', 'failed', 'cancelled')"
IS_FIRST = (
    "NOT EXISTS (SELECT 1 FROM attempts b "
    "WHERE b.experiment_id = a.experiment_id AND b.attempt < a.attempt)"
)
IS_LAST = "a.attempt = e.attempt"
ENDED_IT = f"{IS_LAST} AND a.outcome NOT IN ('queued', 'paused')"
TOTALS = f"""
INSERT INTO totals (outcome, number, failed, waits, waits_s, runs, runs_s)
SELECT outcome, sum(number), sum(failed), sum(waits), sum(waits_s), sum(runs), sum(runs_s) FROM (
    SELECT CASE failure_kind WHEN '' THEN status ELSE failure_kind END AS outcome,
        CASE failure_kind WHEN 'lost' THEN 0 ELSE number END AS number,
        CASE failure_kind WHEN '' THEN 0 ELSE number END AS failed, waits, waits_s, runs, runs_s
        FROM tallies
    UNION ALL SELECT 'lost', lost, 0, 0, 0, 0, 0 FROM tallies
    UNION ALL SELECT 'lost', e.lost, 0, 0, 0, 0, 0 FROM experiments e WHERE NOT {ENDED}
    UNION ALL SELECT 'queued', 0, 0, 1, e.started_at - e.created_at, 0, 0
        FROM attempts a JOIN experiments e ON e.id = a.experiment_id
        WHERE a.folded AND {IS_FIRST} AND NOT {ENDED}
    UNION ALL SELECT 'lost', -1, 0, 0, 0, 0, 0
        FROM attempts a WHERE NOT a.folded AND a.outcome = 'lost'
    UNION ALL SELECT coalesce(e.failure_kind, e.status),
        CASE WHEN {IS_LAST} AND a.outcome <> 'lost' THEN -1 ELSE 0 END,
        CASE WHEN {IS_LAST} AND e.status = 'failed' THEN -1 ELSE 0 END,
        CASE WHEN {IS_FIRST} THEN -1 ELSE 0 END,
        CASE WHEN {IS_FIRST} THEN e.created_at - e.started_at ELSE 0 END,
        CASE WHEN {ENDED_IT} THEN -1 ELSE 0 END,
        CASE WHEN {ENDED_IT} THEN e.started_at - e.finished_at ELSE 0 END
        FROM attempts a JOIN experiments e ON e.id = a.experiment_id
        WHERE NOT a.folded AND {ENDED}
) AS figures GROUP BY outcome
"""
"""Ended experiments, with those that were purged; unfinished ones; less the attempts that are not
folded yet. The waits of current first attempts are read from their rows."""

RECORDS = """
    coalesce((SELECT sum(37 * blocks.count) FROM series
              JOIN blocks ON blocks.series_id = series.id
              WHERE series.experiment_id = experiments.id), 0)
  + coalesce((SELECT sum(16 + length(name) + length(labels) + coalesce(length(reason), 0))
              FROM metrics WHERE metrics.experiment_id = experiments.id), 0)
  + coalesce((SELECT sum(length(CAST(data AS TEXT))) FROM events
              WHERE events.experiment_id = experiments.id AND kind = 'log'), 0)
  + coalesce((SELECT sum(bytes) FROM artifacts
              WHERE artifacts.experiment_id = experiments.id), 0)
"""


def _length(*columns: str) -> str:
    """Return the sum of the lengths of texts and JSON. JSON's null is none."""
    return " + ".join(
        f"coalesce(length(nullif(CAST({name} AS TEXT), 'null')), 0)" for name in columns
    )


KEPT_BYTES = {
    "sweeps": _length("spec", "comes_after", "name", "tags", "note"),
    "datasets": "bytes + " + _length("arrays", "columns", "constant", "missing", "reading"),
    "requests": "256 + " + _length("idempotency_key", "made"),
}


def carry_over(op: Operations) -> None:
    _carry_experiments(op)
    _carry_attempts(op)
    _carry_records(op)
    _carry_datasets(op)
    _carry_workers(op)
    _count_kept_bytes(op)
    _index_experiments(op)
    op.drop_table("turns")
    op.drop_table("sign_in_codes")
    op.drop_table("sign_ins")
    op.add_column("api_keys", sa.Column("link_used_at", sa.Double()))


def _carry_experiments(op: Operations) -> None:
    """Queue dispatched experiments again. PPCA and factor analysis with the device `auto` use the
    CPU: those that have not ended get this device, and lose their estimates of memory, which were
    those of a GPU."""
    op.execute("UPDATE experiments SET status = 'queued' WHERE status = 'dispatched'")
    op.execute(
        "UPDATE experiments SET device = 'cpu', memory_bytes = NULL, estimated_bytes = NULL "
        "WHERE device = 'auto' AND family IN ('ppca', 'factor_analysis') "
        "AND status IN ('queued', 'running', 'paused')"
    )
    op.drop_index("ix_experiments_queue", "experiments")
    for column in ("dispatch_no", "dispatched_at"):
        op.drop_column("experiments", column)
    part = sa.Column("gpu_part_bytes", sa.BigInteger(), server_default="0", nullable=False)
    op.add_column("experiments", part)


def _carry_attempts(op: Operations) -> None:
    """Store why each attempt ended, and count ended attempts in `totals` instead of ended
    experiments in `tallies`. No counter changes: what the next fold adds is left out."""
    op.add_column("attempts", sa.Column("outcome", sa.String(16)))
    op.execute(_outcomes())
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
    op.execute(TOTALS)
    for name in ("tally_inserted", "tally_ended", "tally_gone"):
        _drop_trigger(op, name, "experiments")
    op.drop_table("tallies")
    op.execute("ALTER TABLE usage RENAME COLUMN slot_s TO settled_s")
    op.add_column("usage", sa.Column("charged_s", sa.Double(), server_default="0", nullable=False))
    op.execute("UPDATE usage SET charged_s = settled_s")
    controller = op.create_table(
        "controller",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
    )
    op.bulk_insert(controller, [{"id": 1, "holder": "", "until": 0.0}])


def _outcomes() -> sa.Update:
    """Return the statement that fills the outcomes of attempts that have ended, from the events of
    their experiments. No event names an attempt that the restore of a backup queued again."""
    names = ("experiment_id", "attempt", "ended_at", "outcome")
    attempts = sa.table("attempts", *[sa.column(name) for name in names])
    experiments = sa.table("experiments", sa.column("id"), sa.column("failure_kind"))
    events = sa.table(
        "events", sa.column("experiment_id"), sa.column("kind"), sa.column("data", sa.JSON)
    )
    status = events.c.data["status"].as_string()
    lost_attempt = events.c.data["lost_attempt"].as_integer()
    attempt = events.c.data["attempt"].as_integer()
    is_its_end = sa.or_(
        lost_attempt == attempts.c.attempt,
        sa.and_(attempt == attempts.c.attempt, status != "running"),
    )
    outcome = (
        sa.select(
            sa.case(
                (lost_attempt.is_not(None), "lost"),
                (status == "failed", sa.func.coalesce(experiments.c.failure_kind, status)),
                else_=status,
            )
        )
        .select_from(events.join(experiments, experiments.c.id == events.c.experiment_id))
        .where(events.c.experiment_id == attempts.c.experiment_id, events.c.kind == "status")
        .where(is_its_end)
        .limit(1)
        .correlate(attempts)
        .scalar_subquery()
    )
    return (
        sa.update(attempts)
        .where(attempts.c.ended_at.is_not(None))
        .values(outcome=sa.func.coalesce(outcome, "queued"))
    )


def _carry_records(op: Operations) -> None:
    """Delete checkpoints within a block of points: version 0.2 added points to a block, and cut it
    at a resume. Runs with such a checkpoint resume from an earlier one, or begin again."""
    if op.get_bind().dialect.name == "postgresql":
        _drop_trigger(op, "note_event_writer", "events")
    op.execute(
        "DELETE FROM checkpoints WHERE EXISTS ("
        " SELECT 1 FROM series JOIN blocks ON blocks.series_id = series.id"
        " WHERE series.experiment_id = checkpoints.experiment_id"
        " AND blocks.first_seq <= checkpoints.after_seq"
        " AND blocks.last_seq > checkpoints.after_seq)"
    )
    op.drop_index("ix_deliveries_next_at", "deliveries")
    due = ["webhook_id", "next_at", "experiment_id"]
    _partial_index(op, "ix_deliveries_due", "deliveries", due, "next_at IS NOT NULL")


def _carry_datasets(op: Operations) -> None:
    with op.batch_alter_table("datasets") as table:
        table.add_column(sa.Column("reading", NULLABLE_JSON))
        table.add_column(
            sa.Column("options_sha256", sa.String(64), server_default="", nullable=False)
        )
        table.drop_constraint("uq_datasets_owner_id_sha256_format_copy", type_="unique")
        table.create_unique_constraint(
            "uq_datasets_owner_id_sha256_format_options_sha256_copy",
            ["owner_id", "sha256", "format", "options_sha256", "copy"],
        )


def _carry_workers(op: Operations) -> None:
    for column in (
        sa.Column("store_full", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("memory_pools", NULLABLE_JSON),
        sa.Column("memory_ours", sa.BigInteger()),
        sa.Column("looked_at", sa.Double()),
        sa.Column("families", sa.JSON(), server_default=sa.text("'[]'"), nullable=False),
    ):
        op.add_column("workers", column)
    op.create_table(
        "drains",
        sa.Column("host", sa.String(200), primary_key=True),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("hand_back_at", sa.Double(), nullable=False),
        sa.Column("until", sa.Double()),
        sa.Column("drained_by", sa.String(100), nullable=False),
    )


def _count_kept_bytes(op: Operations) -> None:
    """Measure the bytes that users keep, instead of booking each change of them."""
    op.add_column("experiments", sa.Column("record_bytes", sa.BigInteger(), server_default="0"))
    op.execute(
        f"UPDATE experiments SET record_bytes = CASE status WHEN 'running' THEN NULL ELSE {RECORDS}"
        " END WHERE attempt > 0"
    )
    for table, size in KEPT_BYTES.items():
        column = sa.Column("kept_bytes", sa.BigInteger(), nullable=False, server_default="0")
        op.add_column(table, column)
        op.execute(f"UPDATE {table} SET kept_bytes = {size}")
    op.create_index("ix_requests_owner_id_kept_bytes", "requests", ["owner_id", "kept_bytes"])
    op.drop_table("byte_changes")


def _index_experiments(op: Operations) -> None:
    table = "experiments"
    op.drop_index("ix_experiments_cache_key", table)
    for name, where, columns in (
        ("cache_key", "cache_key IS NOT NULL", ["cache_key", "status", "owner_id"]),
        ("large_spec", "spec_bytes > 2048", ["owner_id", "id"]),
        ("running", "status = 'running'", ["owner_id", "queue"]),
        (
            "never_started",
            "status = 'cancelled' AND attempt = 0 AND sweep_id IS NULL",
            ["finished_at", "id"],
        ),
        ("retry_of", "retry_of IS NOT NULL", ["retry_of"]),
        ("held", "status = 'queued' AND held = 'sweep'", ["status", "held", "sweep_id", "id"]),
        ("unmeasured", "record_bytes IS NULL", ["id"]),
    ):
        _partial_index(op, f"ix_experiments_{name}", table, columns, where)
    order: list[str | sa.TextClause] = ["owner_id", sa.text("priority DESC"), "id", "memory_bytes"]
    for queue, other in (("cpu", "cuda"), ("gpu", "cpu")):
        startable = f"status = 'queued' AND held = '' AND device <> '{other}'"
        _partial_index(op, f"ix_experiments_startable_{queue}", table, order, startable)
    op.create_index("ix_experiments_status_owner_id", table, ["status", "owner_id"])
    op.create_index("ix_experiments_kept", table, ["owner_id", "spec_bytes", "record_bytes"])
    if op.get_bind().dialect.name == "postgresql":
        op.drop_index("ix_experiments_spec", table)
        op.create_index(
            "ix_experiments_spec",
            table,
            [sa.text("(spec::jsonb) jsonb_path_ops")],
            postgresql_using="gin",
            postgresql_where=sa.text("spec_bytes <= 2048"),
        )


def _partial_index(
    op: Operations, name: str, table: str, columns: Sequence[str | sa.TextClause], where: str
) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)


def _drop_trigger(op: Operations, name: str, table: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP TRIGGER {name} ON {table}")
        op.execute(f"DROP FUNCTION {name}()")
    else:
        op.execute(f"DROP TRIGGER {name}")
