"""An advisory lock that each transaction takes before it writes events."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

KEY = 7_301_524
"""`service.streams.changes.WRITERS_LOCK`"""


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":  # SQLite has one writer at a time
        return
    op.execute(
        "CREATE FUNCTION note_event_writer() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM pg_advisory_xact_lock_shared({KEY}); RETURN NULL; END $$"
    )
    # Once for a statement, before its first row: that is, before an id is taken from the sequence.
    op.execute(
        "CREATE TRIGGER note_event_writer BEFORE INSERT ON events "
        "FOR EACH STATEMENT EXECUTE FUNCTION note_event_writer()"
    )


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER note_event_writer ON events")
        op.execute("DROP FUNCTION note_event_writer()")
