"""Measure the bytes that users keep, instead of booking each change of them."""

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None

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


KEPT = {
    "sweeps": _length("spec", "comes_after", "name", "tags", "note"),
    "datasets": "bytes + " + _length("arrays", "columns", "constant", "missing", "reading"),
    "requests": "256 + " + _length("idempotency_key", "made"),
}


def upgrade() -> None:
    op.add_column("experiments", sa.Column("record_bytes", sa.BigInteger(), server_default="0"))
    op.execute(
        f"UPDATE experiments SET record_bytes = CASE status WHEN 'running' THEN NULL ELSE {RECORDS}"
        " END WHERE attempt > 0"
    )
    op.create_index(
        "ix_experiments_kept", "experiments", ["owner_id", "spec_bytes", "record_bytes"]
    )
    where = sa.text("record_bytes IS NULL")
    op.create_index(
        "ix_experiments_unmeasured",
        "experiments",
        ["id"],
        postgresql_where=where,
        sqlite_where=where,
    )
    for table, size in KEPT.items():
        column = sa.Column("kept_bytes", sa.BigInteger(), nullable=False, server_default="0")
        op.add_column(table, column)
        op.execute(f"UPDATE {table} SET kept_bytes = {size}")
    op.create_index("ix_requests_owner_id_kept_bytes", "requests", ["owner_id", "kept_bytes"])
    op.drop_table("byte_changes")


def downgrade() -> None:
    op.create_table(
        "byte_changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("owner_id", sa.Integer(), nullable=False, index=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
    )
    op.drop_index("ix_requests_owner_id_kept_bytes", "requests")
    kept = {"experiments": "2048 + spec_bytes + coalesce(record_bytes, 0)"}
    for table, size in (kept | dict.fromkeys(KEPT, "kept_bytes")).items():
        op.execute(
            "INSERT INTO byte_changes (owner_id, bytes) "
            f"SELECT owner_id, sum({size}) FROM {table} GROUP BY owner_id"
        )
    for table in KEPT:
        op.drop_column(table, "kept_bytes")
    op.drop_index("ix_experiments_unmeasured", "experiments")
    op.drop_index("ix_experiments_kept", "experiments")
    op.drop_column("experiments", "record_bytes")
