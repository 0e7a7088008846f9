"""Drop the trigger that takes an advisory lock for each transaction that writes an event."""

from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None

WRITERS_LOCK = 7_301_524


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER note_event_writer ON events")
        op.execute("DROP FUNCTION note_event_writer()")


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION note_event_writer() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN PERFORM pg_advisory_xact_lock_shared({WRITERS_LOCK}); RETURN NULL; END $$"
        )
        op.execute(
            "CREATE TRIGGER note_event_writer BEFORE INSERT ON events "
            "FOR EACH STATEMENT EXECUTE FUNCTION note_event_writer()"
        )
