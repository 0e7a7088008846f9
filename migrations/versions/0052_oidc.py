"""Add the account of a provider that signs a user in, the reason for which the service disabled a
user, and the keys that are sign-ins by such an account."""

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None

ACCOUNT = "ix_users_oidc_issuer_oidc_subject"


def upgrade() -> None:
    op.add_column("users", sa.Column("disabled_for", sa.String(16)))
    op.add_column("users", sa.Column("oidc_issuer", sa.String(500)))
    op.add_column("users", sa.Column("oidc_subject", sa.String(255)))
    op.create_index(ACCOUNT, "users", ["oidc_issuer", "oidc_subject"], unique=True)
    op.add_column("api_keys", sa.Column("authenticated_at", sa.Double()))


def downgrade() -> None:
    op.drop_column("api_keys", "authenticated_at")
    op.drop_index(ACCOUNT, "users")
    op.drop_column("users", "oidc_subject")
    op.drop_column("users", "oidc_issuer")
    op.drop_column("users", "disabled_for")
