"""Browsers that are signed in, and codes that sign one in once."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sign_ins",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("secret_sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("previous_sha256", sa.LargeBinary(32), nullable=True),
        sa.Column("renewed_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], "fk_sign_ins_key_id_api_keys"),
        sa.PrimaryKeyConstraint("id", name="pk_sign_ins"),
    )
    op.create_table(
        "sign_in_codes",
        sa.Column("sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], "fk_sign_in_codes_key_id_api_keys"),
        sa.PrimaryKeyConstraint("sha256", name="pk_sign_in_codes"),
    )


def downgrade() -> None:
    op.drop_table("sign_in_codes")
    op.drop_table("sign_ins")
