"""Delete checkpoints within a block of points: earlier versions added points to a block, and cut it
at a resume. Runs with such a checkpoint resume from an earlier one, or begin again."""

from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "DELETE FROM checkpoints WHERE EXISTS ("
        " SELECT 1 FROM series JOIN blocks ON blocks.series_id = series.id"
        " WHERE series.experiment_id = checkpoints.experiment_id"
        " AND blocks.first_seq <= checkpoints.after_seq"
        " AND blocks.last_seq > checkpoints.after_seq)"
    )


def downgrade() -> None:
    pass
