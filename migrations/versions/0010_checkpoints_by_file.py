"""checkpoints by file: several may be after the same record."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _make_anew(["experiment_id", "file"])


def downgrade() -> None:
    rows = sa.table("checkpoints", *(sa.column(name) for name in (*KEY, "file")))
    other = rows.alias()
    same = sa.and_(*(rows.c[name] == other.c[name] for name in KEY))
    later = sa.select(other.c.file).where(same, other.c.file > rows.c.file)
    op.execute(sa.delete(rows).where(later.exists()))
    _make_anew(list(KEY))


KEY = ("experiment_id", "after_seq", "attempt")


def _make_anew(key: list[str]) -> None:
    """The same table and rows by another key."""
    op.execute("ALTER TABLE checkpoints RENAME TO checkpoints_before")
    if op.get_bind().dialect.name == "postgresql":  # where names of constraints are a schema's
        op.execute("ALTER INDEX pk_checkpoints RENAME TO pk_checkpoints_before")
    op.create_table(
        "checkpoints",
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("file", sa.String(length=500), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("after_seq", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiments.id"],
            name=op.f("fk_checkpoints_experiment_id_experiments"),
        ),
        sa.PrimaryKeyConstraint(*key, name=op.f("pk_checkpoints")),
    )
    columns = "experiment_id, file, attempt, after_seq, sha256, created_at"
    op.execute(f"INSERT INTO checkpoints ({columns}) SELECT {columns} FROM checkpoints_before")
    op.drop_table("checkpoints_before")
