"""Count the bytes that users have stored so far. Artifacts are measured later."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

NULLABLE = (("users", "max_bytes"), ("artifacts", "bytes"))
OF_EXPERIMENTS = ("spec_bytes", "expected_bytes")
KEPT = """
SELECT owner_id, spec_bytes AS size FROM experiments
UNION ALL SELECT owner_id, bytes FROM datasets
UNION ALL SELECT owner_id, length(CAST(spec AS TEXT)) FROM sweeps
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


def upgrade() -> None:
    op.create_table(
        "byte_changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_byte_changes"),
    )
    op.create_index("ix_byte_changes_owner_id", "byte_changes", ["owner_id"])
    for table, column in NULLABLE:
        op.add_column(table, sa.Column(column, sa.BigInteger(), nullable=True))
    for name in OF_EXPERIMENTS:
        number = sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
        op.add_column("experiments", number)
    op.execute("UPDATE experiments SET spec_bytes = length(CAST(spec AS TEXT))")
    op.execute(
        "INSERT INTO byte_changes (owner_id, bytes) "
        f"SELECT owner_id, sum(size) FROM ({KEPT}) AS kept GROUP BY owner_id"
    )


def downgrade() -> None:
    # Not in a batch, which makes the table anew on SQLite, without its triggers.
    for table, column in (*(("experiments", name) for name in OF_EXPERIMENTS), *NULLABLE):
        op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    op.drop_table("byte_changes")
