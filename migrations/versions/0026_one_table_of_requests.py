"""All idempotency keys are in one table."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import op
from alembic.operations import BatchOperations

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

UNIQUE = "uq_experiments_owner_id_idempotency_key"
ID = "_" * 32
"""Pattern of an id."""


def _is_sqlite() -> bool:
    return op.get_bind().dialect.name == "sqlite"


@contextmanager
def _altered_experiments() -> Iterator[BatchOperations]:
    """Alter the table. SQLite makes it anew for that, and forgets its triggers."""
    triggers: list[str] = []
    if _is_sqlite():
        query = "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'experiments'"
        triggers = [row.sql for row in op.get_bind().execute(sa.text(query))]
    with op.batch_alter_table("experiments") as batch_op:
        yield batch_op
    for trigger in triggers:
        op.get_bind().exec_driver_sql(trigger)


def _made(experiment_id: str) -> str:
    """Expression for the JSON of what the submission of an experiment made, as text."""
    return f"""'[{{"id": "' || {experiment_id} || '", "cached_from": null}}]'"""


def _json(text: str) -> str:
    return text if _is_sqlite() else f"CAST({text} AS JSON)"


def _count_bytes(sign: str) -> None:
    """Count what requests have made as bytes of their users, or count it no more."""
    op.execute(
        f"INSERT INTO byte_changes (owner_id, bytes) SELECT owner_id, {sign}sum(length(CAST(made "
        "AS TEXT))) FROM requests GROUP BY owner_id"
    )


def upgrade() -> None:
    _count_bytes("-")
    # The bodies of older requests are not known. Their method and path stand for them.
    op.execute(
        "INSERT INTO requests (owner_id, idempotency_key, sha256, made, created_at) "
        "SELECT owner_id, idempotency_key, 'POST /v1/experiments' || CASE WHEN retry_of IS NULL "
        f"THEN '' ELSE '/' || retry_of || '\\:retry' END, {_json(_made('id'))}, created_at "
        "FROM experiments WHERE idempotency_key IS NOT NULL ON CONFLICT DO NOTHING"
    )
    text = "CAST(made AS TEXT)"
    first_point = f"substr({text}, 1, 35) || ', 0]'"
    op.execute(
        "UPDATE requests SET sha256 = 'POST /v1/experiments\\:batch' "
        f"WHERE {text} LIKE '[{{%' AND sha256 NOT LIKE 'POST %'"
    )
    op.execute(
        "UPDATE requests SET sha256 = 'POST /v1/sweeps', "
        f"made = {_json(first_point)} WHERE {text} LIKE '[\"{ID}\"]'"
    )
    _count_bytes("+")
    with _altered_experiments() as batch_op:
        batch_op.drop_constraint(UNIQUE, type_="unique")
        batch_op.drop_column("submission_sha256")
        batch_op.drop_column("idempotency_key")


def downgrade() -> None:
    with _altered_experiments() as batch_op:
        batch_op.add_column(sa.Column("idempotency_key", sa.String(200), nullable=True))
        batch_op.add_column(sa.Column("submission_sha256", sa.String(64), nullable=True))
        batch_op.create_unique_constraint(UNIQUE, ["owner_id", "idempotency_key"])
    _count_bytes("-")
    text = "CAST(requests.made AS TEXT)"
    same = (
        f"requests.owner_id = experiments.owner_id AND experiments.id = substr({text}, 10, 32) "
        f"AND {text} = {_made('experiments.id')}"
    )
    op.execute(
        "UPDATE experiments SET idempotency_key = requests.idempotency_key, "
        f"submission_sha256 = requests.sha256 FROM requests WHERE {same} AND deleted_at IS NULL"
    )
    op.execute(f"DELETE FROM requests WHERE EXISTS (SELECT 1 FROM experiments WHERE {same})")
    op.execute("UPDATE requests SET made = " + _json(f"replace({text}, ', 0]', ']')"))
    _count_bytes("+")
