"""ids of events that are never given twice."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _make_events_anew(sqlite_autoincrement=True)


def downgrade() -> None:
    _make_events_anew(sqlite_autoincrement=False)


def _make_events_anew(**table: bool) -> None:
    """PostgreSQL's sequences never go back."""
    if op.get_bind().dialect.name == "sqlite":
        with op.batch_alter_table("events", recreate="always", table_kwargs=table):
            pass
