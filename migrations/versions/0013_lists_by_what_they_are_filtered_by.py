"""the family of an experiment, and the indices of filters and orders of lists."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

SPEC = sa.table("experiments", sa.column("spec", sa.JSON), sa.column("family", sa.String))
INDICES = {
    "ix_experiments_created_at_id": ["created_at", "id"],
    "ix_experiments_owner_id_created_at_id": ["owner_id", "created_at", "id"],
    "ix_experiments_owner_id_finished_at_id": ["owner_id", "finished_at", "id"],
    "ix_experiments_owner_id_name_id": ["owner_id", "name", "id"],
    "ix_experiments_owner_id_family_created_at_id": ["owner_id", "family", "created_at", "id"],
}
INTO_JSON = {"ix_experiments_tags": "tags", "ix_experiments_spec": "spec"}
"""Indexes of PostgreSQL alone: elements of a list, and values of a field of a spec."""
SHARED = sa.text("visibility = 'lab'")


def upgrade() -> None:
    with op.batch_alter_table("experiments") as batch_op:
        batch_op.add_column(sa.Column("family", sa.String(32), nullable=True))
    family = sa.func.coalesce(SPEC.c.spec["model"]["family"].as_string(), "ppca")
    op.execute(SPEC.update().values(family=family))
    with op.batch_alter_table("experiments") as batch_op:
        batch_op.alter_column("family", existing_type=sa.String(32), nullable=False)
    for name, columns in INDICES.items():
        op.create_index(name, "experiments", columns)
    _index_shared(["created_at", "id"])
    op.create_index(
        "ix_metrics_name_value_experiment_id", "metrics", ["name", "value", "experiment_id"]
    )
    if op.get_bind().dialect.name == "postgresql":
        for name, column in INTO_JSON.items():
            inside = sa.text(f"({column}::jsonb) jsonb_path_ops")
            op.create_index(name, "experiments", [inside], postgresql_using="gin")


def _index_shared(columns: list[str]) -> None:
    op.drop_index("ix_experiments_shared", "experiments")
    op.create_index("ix_experiments_shared", "experiments", columns, sqlite_where=SHARED,
                    postgresql_where=SHARED)  # fmt: skip


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for name in INTO_JSON:
            op.drop_index(name, "experiments")
    op.drop_index("ix_metrics_name_value_experiment_id", "metrics")
    _index_shared(["id"])
    for name in INDICES:
        op.drop_index(name, "experiments")
    with op.batch_alter_table("experiments") as batch_op:
        batch_op.drop_column("family")
