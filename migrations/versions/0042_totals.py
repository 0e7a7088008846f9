"""Store why each attempt ended, and count ended attempts in `totals` instead of ended experiments
in `tallies`. No counter changes: what the next fold adds is left out of the totals."""

from importlib import import_module

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

TRIGGERS = ("tally_inserted", "tally_ended", "tally_gone")

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


def upgrade() -> None:
    op.add_column("attempts", sa.Column("outcome", sa.String(16), nullable=True))
    op.execute(_outcomes())
    op.create_table(
        "totals",
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("waits", sa.BigInteger(), nullable=False),
        sa.Column("waits_s", sa.Double(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("runs_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("outcome", name="pk_totals"),
    )
    op.execute(TOTALS)
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    for name in TRIGGERS:
        op.execute(f"DROP TRIGGER {name}" + (" ON experiments" if is_postgresql else ""))
        if is_postgresql:
            op.execute(f"DROP FUNCTION {name}()")
    op.drop_table("tallies")
    op.drop_column("attempts", "handed_back")


def _outcomes() -> sa.Update:
    """Return the statement that fills the outcomes of attempts that have ended, from the events of
    their experiments. No event names an attempt that the restore of a backup queued again."""
    names = ("experiment_id", "attempt", "ended_at", "outcome", "handed_back")
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
        .values(outcome=sa.func.coalesce(attempts.c.handed_back, outcome, "queued"))
    )


def downgrade() -> None:
    """Count again what has ended. Experiments that were purged are no longer counted."""
    op.add_column("attempts", sa.Column("handed_back", sa.String(16), nullable=True))
    op.execute("UPDATE attempts SET handed_back = outcome WHERE outcome IN ('disk_full', 'memory')")
    op.drop_column("attempts", "outcome")
    op.drop_table("totals")
    import_module("migrations.versions.0029_tables_of_version_0_2")._create_tallies()
