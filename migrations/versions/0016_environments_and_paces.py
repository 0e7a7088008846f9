"""environments of attempts, paces of runs."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

PROGRESS: tuple[tuple[str, sa.types.TypeEngine[Any]], ...] = (
    ("progress_stage", sa.JSON(none_as_null=True)),
    ("progress_at", sa.Double()),
    ("progress_eta_s", sa.Double()),
    ("progress_eta_std_err_s", sa.Double()),
)


def upgrade() -> None:
    with op.batch_alter_table("attempts") as table:
        table.add_column(sa.Column("environment", sa.JSON(none_as_null=True), nullable=True))
    with op.batch_alter_table("experiments") as table:
        for name, kind in PROGRESS:
            table.add_column(sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("attempts") as table:
        table.drop_column("environment")
    with op.batch_alter_table("experiments") as table:
        for name, _ in PROGRESS:
            table.drop_column(name)
