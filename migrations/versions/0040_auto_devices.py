"""Drop the column for experiments that an idle CPU runs in less time than a GPU needs to start.
PPCA and factor analysis with device `auto` use the CPU: those that have not ended get this device,
and lose their estimates of memory, which were those of a GPU."""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

TABLE = "experiments"
FAMILIES = ("ppca", "factor_analysis")
COLUMNS = ("device", "family", "status", "memory_bytes", "estimated_bytes")
NOT_ENDED = ("queued", "dispatched", "running", "paused")


def upgrade() -> None:
    experiments = sa.table(TABLE, *map(sa.column, COLUMNS))
    op.execute(
        experiments.update()
        .where(
            experiments.c.device == "auto",
            experiments.c.family.in_(FAMILIES),
            experiments.c.status.in_(NOT_ENDED),
        )
        .values(device="cpu", memory_bytes=None, estimated_bytes=None)
    )
    op.drop_column(TABLE, "prefers_cpu")


def downgrade() -> None:
    no = sa.false()
    op.add_column(TABLE, sa.Column("prefers_cpu", sa.Boolean(), server_default=no, nullable=False))
