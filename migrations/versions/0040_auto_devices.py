"""Drop the column for experiments that an idle CPU runs in less time than a GPU needs to start.
PPCA and factor analysis with device `auto` use the CPU: those that have not ended get this device.
"""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

TABLE = "experiments"
FAMILIES = ("ppca", "factor_analysis")
NOT_ENDED = ("queued", "dispatched", "running", "paused")


def upgrade() -> None:
    experiments = sa.table(TABLE, *map(sa.column, ("device", "family", "status")))
    op.execute(
        experiments.update()
        .where(
            experiments.c.device == "auto",
            experiments.c.family.in_(FAMILIES),
            experiments.c.status.in_(NOT_ENDED),
        )
        .values(device="cpu")
    )
    op.drop_column(TABLE, "prefers_cpu")


def downgrade() -> None:
    no = sa.false()
    op.add_column(TABLE, sa.Column("prefers_cpu", sa.Boolean(), server_default=no, nullable=False))
