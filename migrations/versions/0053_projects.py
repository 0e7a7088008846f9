"""Add projects: their members, the project that an experiment belongs to and is charged to, and the
usage of each member in each project. Everything from before is the users' own."""

import sqlalchemy as sa
from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None

STARTABLE = "status = 'queued' AND held = '' AND device <> "
"""Condition of the indexes of both queues, up to the device that their workers do not accept."""


def upgrade() -> None:
    op.create_table(
        "projects",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False, unique=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double()),
        sa.Column("shares", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("max_running", sa.Integer()),
        sa.Column("max_submitted", sa.Integer()),
        sa.Column("max_gpu_hours_a_day", sa.Double()),
        sa.Column("max_bytes", sa.BigInteger()),
    )
    op.create_table(
        "project_members",
        sa.Column("project_id", sa.Integer(), sa.ForeignKey("projects.id"), primary_key=True),
        sa.Column("user_id", sa.Integer(), sa.ForeignKey("users.id"), primary_key=True, index=True),
        sa.Column("left_at", sa.Double()),
    )
    for table in ("experiments", "attempts", "sweeps", "datasets"):
        project = sa.Column("project_id", sa.Integer(), nullable=False, server_default="0")
        op.add_column(table, project)
    op.create_index(
        "ix_experiments_project",
        "experiments",
        ["project_id", "status"],
        sqlite_where=sa.text("project_id <> 0"),
        postgresql_where=sa.text("project_id <> 0"),
    )
    op.create_index(
        "ix_experiments_shared_with_project",
        "experiments",
        ["project_id", "created_at", "id"],
        sqlite_where=sa.text("visibility = 'project'"),
        postgresql_where=sa.text("visibility = 'project'"),
    )
    _index_startable("owner_id", "project_id", sa.text("priority DESC"), "id", "memory_bytes")
    _replace_usage(sa.Column("project_id", sa.Integer(), primary_key=True, autoincrement=False))


def downgrade() -> None:
    op.execute("DELETE FROM usage WHERE project_id <> 0")
    _replace_usage()
    _index_startable("owner_id", sa.text("priority DESC"), "id", "memory_bytes")
    for table in ("experiments", "sweeps", "datasets"):
        op.execute(f"UPDATE {table} SET visibility = 'private' WHERE visibility = 'project'")
    op.drop_index("ix_experiments_shared_with_project", "experiments")
    op.drop_index("ix_experiments_project", "experiments")
    for table in ("datasets", "sweeps", "attempts", "experiments"):
        op.drop_column(table, "project_id")
    op.drop_table("project_members")
    op.drop_table("projects")


def _index_startable(*columns: str | sa.TextClause) -> None:
    for queue, other_device in (("cpu", "cuda"), ("gpu", "cpu")):
        name, condition = f"ix_experiments_startable_{queue}", f"{STARTABLE}'{other_device}'"
        op.drop_index(name, "experiments")
        op.create_index(
            name,
            "experiments",
            columns,
            sqlite_where=sa.text(condition),
            postgresql_where=sa.text(condition),
        )


def _replace_usage(*more_of_key: sa.Column[int]) -> None:
    """Create the table again with another key, and keep its rows."""
    numbers = ("owner_id", "settled_s", "charged_s", "as_of")
    rows = op.get_bind().execute(sa.text(f"SELECT {', '.join(numbers)} FROM usage")).mappings()
    before = [{**row, **{column.name: 0 for column in more_of_key}} for row in rows]
    op.drop_table("usage")
    usage = op.create_table(
        "usage",
        sa.Column("owner_id", sa.Integer(), sa.ForeignKey("users.id"), primary_key=True),
        *more_of_key,
        sa.Column("settled_s", sa.Double(), nullable=False),
        sa.Column("charged_s", sa.Double(), nullable=False, server_default="0"),
        sa.Column("as_of", sa.Double(), nullable=False),
    )
    op.bulk_insert(usage, before)
