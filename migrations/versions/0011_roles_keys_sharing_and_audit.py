"""roles of users, scopes of keys, sharing and deleting, the audit."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

LOCAL_USER = "local"
ALL_SCOPES = ["read", "submit", "cancel", "admin", "metrics"]
MEMBER_SCOPES = ["read", "submit", "cancel", "metrics"]

USERS = sa.table("users", sa.column("id"), sa.column("name"), sa.column("role"))
KEYS = sa.table(
    "api_keys",
    *(sa.column(name) for name in ("id", "user_id", "revoked_at")),
    sa.column("scopes", sa.JSON),
)


def upgrade() -> None:
    _add_roles()
    _add_scopes()
    _add_sharing()
    _add_purged()
    _add_audit()


def _add_roles() -> None:
    with op.batch_alter_table("users") as batch_op:
        role = sa.Column("role", sa.String(16), nullable=False, server_default="member")
        batch_op.add_column(role)
        batch_op.add_column(sa.Column("disabled_at", sa.Double(), nullable=True))
    op.execute(USERS.update().where(USERS.c.name == LOCAL_USER).values(role="admin"))


def _add_scopes() -> None:
    """Keys of before may do what they could; the local user's may all."""
    with op.batch_alter_table("api_keys") as batch_op:
        batch_op.add_column(sa.Column("name", sa.String(200), nullable=True))
        batch_op.add_column(sa.Column("scopes", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("expires_at", sa.Double(), nullable=True))
        batch_op.add_column(sa.Column("last_used_at", sa.Double(), nullable=True))
    op.execute(KEYS.update().values(scopes=MEMBER_SCOPES))
    admins = sa.select(USERS.c.id).where(USERS.c.role == "admin")
    op.execute(KEYS.update().where(KEYS.c.user_id.in_(admins)).values(scopes=ALL_SCOPES))
    with op.batch_alter_table("api_keys") as batch_op:
        batch_op.alter_column("scopes", existing_type=sa.JSON(), nullable=False)


def _add_sharing() -> None:
    with op.batch_alter_table("datasets") as batch_op:
        batch_op.add_column(_visibility())
    with op.batch_alter_table("experiments") as batch_op:
        batch_op.add_column(_visibility())
        batch_op.add_column(
            sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        batch_op.add_column(sa.Column("deleted_at", sa.Double(), nullable=True))
    for name, column, condition in PARTIAL_INDICES:
        where = sa.text(condition)
        op.create_index(name, "experiments", [column], sqlite_where=where, postgresql_where=where)


PARTIAL_INDICES = (
    ("ix_experiments_shared", "id", "visibility = 'lab'"),
    ("ix_experiments_deleted_at", "deleted_at", "deleted_at IS NOT NULL"),
)


def _visibility() -> sa.Column[str]:
    return sa.Column("visibility", sa.String(8), nullable=False, server_default="private")


def _add_purged() -> None:
    op.create_table(
        "purged",
        sa.Column("failure_kind", sa.String(16), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("number", "lost")),
        sa.Column("waits", sa.BigInteger(), nullable=False),
        sa.Column("waits_s", sa.Double(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("runs_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("failure_kind", name=op.f("pk_purged")),
    )


def _add_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(100), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=True),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("object_id", sa.String(100), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_object_id"), "audit", ["object_id"])
    for statement in APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)


APPEND_ONLY = {
    "sqlite": [
        f"CREATE TRIGGER audit_no_{deed} BEFORE {deed} ON audit "
        "BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END"
        for deed in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        "CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the audit is append-only'; END $$",
        "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()",
    ],
}


def downgrade() -> None:
    _revoke_limited_keys()
    op.drop_table("purged")
    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_is_append_only()")
    for name, _, _ in PARTIAL_INDICES:
        op.drop_index(name, "experiments")
    _drop("experiments", "deleted_at", "pinned", "visibility")
    _drop("datasets", "visibility")
    _drop("api_keys", "last_used_at", "expires_at", "scopes", "name")
    _drop("users", "disabled_at", "role")


def _revoke_limited_keys() -> None:
    """Revoke limited keys, because the earlier version knows neither scopes nor expiry."""
    rows = "SELECT k.id, k.scopes, k.expires_at, u.disabled_at FROM api_keys k JOIN users u"
    found = op.get_bind().execute(sa.text(f"{rows} ON u.id = k.user_id").columns(scopes=sa.JSON))
    limited = [
        row.id
        for row in found
        if row.expires_at or row.disabled_at or not {*MEMBER_SCOPES} <= {*row.scopes}
    ]
    revoked = KEYS.update().where(KEYS.c.id.in_(limited), KEYS.c.revoked_at.is_(None))
    op.execute(revoked.values(revoked_at=0.0))


def _drop(table: str, *columns: str) -> None:
    with op.batch_alter_table(table) as batch_op:
        for column in columns:
            batch_op.drop_column(column)
