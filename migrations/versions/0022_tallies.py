"""Counters of what has ended, kept by triggers; an index on when the queued were submitted.

A later migration that makes the table `experiments` anew on SQLite has to create the triggers
again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

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
NOTHING = f"SELECT '' AS status, '' AS failure_kind, {', '.join(f'0 AS {n}' for n in COUNTED)}"
"""A row that names the columns of those after it."""
TRIGGERS = {
    "tally_inserted": ("INSERT", f"NEW.status IN {TERMINAL}", ADD),
    "tally_ended": (
        "UPDATE OF status",
        f"NEW.status IN {TERMINAL} AND OLD.status NOT IN {TERMINAL}",
        ADD,
    ),
    "tally_gone": ("DELETE", f"OLD.status IN {TERMINAL}", GONE),
}


def upgrade() -> None:
    postgresql = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "tallies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("failure_kind", sa.String(16), nullable=False),
        *(
            sa.Column(name, sa.Double() if name.endswith("_s") else sa.BigInteger(), nullable=False)
            for name in COUNTED
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tallies")),
    )
    for name, (deed, condition, statement) in TRIGGERS.items():
        if postgresql:
            op.execute(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN {statement} RETURN NULL; END $$"
            )
            body = f"EXECUTE FUNCTION {name}()"
        else:
            body = f"BEGIN {statement} END"
        op.execute(
            f"CREATE TRIGGER {name} AFTER {deed} ON experiments FOR EACH ROW WHEN ({condition}) "
            f"{body}"
        )
    sums = ", ".join(f"SUM({name})" for name in COUNTED)
    of_rows = f"SELECT {_of('')} FROM experiments WHERE status IN {TERMINAL}"
    op.execute(
        f"{INTO} SELECT status, failure_kind, {sums} FROM ({NOTHING} UNION ALL {of_rows}) AS ended "
        "WHERE status <> '' GROUP BY status, failure_kind"
    )
    op.execute(f"{INTO} SELECT '', failure_kind, number, 0, lost, waits, waits_s, runs, runs_s "
               "FROM purged")  # fmt: skip
    op.drop_table("purged")
    queued = sa.text("status = 'queued'")
    op.create_index(
        "ix_experiments_queued",
        "experiments",
        ["created_at"],
        sqlite_where=queued,
        postgresql_where=queued,
    )


def downgrade() -> None:
    op.drop_index("ix_experiments_queued", "experiments")
    for name in TRIGGERS:
        if op.get_bind().dialect.name == "postgresql":
            op.execute(f"DROP TRIGGER {name} ON experiments")
            op.execute(f"DROP FUNCTION {name}()")
        else:
            op.execute(f"DROP TRIGGER {name}")
    op.create_table(
        "purged",
        sa.Column("failure_kind", sa.String(16), nullable=False),
        *(
            sa.Column(name, sa.Double() if name.endswith("_s") else sa.BigInteger(), nullable=False)
            for name in COUNTED
            if name != "present"
        ),
        sa.PrimaryKeyConstraint("failure_kind", name=op.f("pk_purged")),
    )
    counted = [name for name in COUNTED if name != "present"]
    of_rows = f"SELECT {_of('')} FROM experiments WHERE status IN {TERMINAL}"
    op.execute(
        f"WITH ended(status, failure_kind, {', '.join(COUNTED)}) AS ({of_rows}), both_ AS ("
        f"SELECT failure_kind, {', '.join(counted)} FROM tallies UNION ALL "
        f"SELECT failure_kind, {', '.join(f'-{name}' for name in counted)} FROM ended) "
        f"INSERT INTO purged (failure_kind, {', '.join(counted)}) "
        f"SELECT failure_kind, {', '.join(f'SUM({name})' for name in counted)} "
        "FROM both_ GROUP BY failure_kind"
    )
    op.drop_table("tallies")
