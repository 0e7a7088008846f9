"""Drop the tables of signed-in browsers and their codes, because cookies and codes are signed. Add
the time of a key's last code that was used."""

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("sign_in_codes")
    op.drop_table("sign_ins")
    op.add_column("api_keys", sa.Column("link_used_at", sa.Double()))


def downgrade() -> None:
    op.drop_column("api_keys", "link_used_at")
    op.create_table(
        "sign_ins",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("key_id", sa.String(16), sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("secret_sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("previous_sha256", sa.LargeBinary(32)),
        sa.Column("renewed_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "sign_in_codes",
        sa.Column("sha256", sa.LargeBinary(32), primary_key=True),
        sa.Column("key_id", sa.String(16), sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
    )
