"""Add a column, with an index, for the scope in which no help may follow one that ended. A look for
helpers then reads no other ended helps."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

BARRED = "barred IS NOT NULL"
ENDED = "ended_at IS NOT NULL"


def upgrade() -> None:
    op.add_column("helps", sa.Column("barred", sa.String(16)))
    _index("ix_helps_barred", ("experiment_id", "attempt"), BARRED)
    _index("ix_helps_ended_at", ("ended_at",), ENDED)


def downgrade() -> None:
    for name in ("ix_helps_ended_at", "ix_helps_barred"):
        op.drop_index(name, "helps")
    op.drop_column("helps", "barred")


def _index(name: str, columns: tuple[str, ...], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, "helps", [*columns], sqlite_where=where, postgresql_where=where)
