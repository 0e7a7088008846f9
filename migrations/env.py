"""Run migrations on the URL that service.operations.prepare gives, or that the settings name."""

from contextlib import closing

from alembic import context
from alembic.operations import Operations
from sqlalchemy import Connection, text

from migrations import from_version_0_2
from service.accounts.models import AuditEntry, User
from service.datasets.models import Dataset
from service.db.engine import NO_TIMEOUTS, Base, Database
from service.db.revisions import FIRST, VERSION_0_2
from service.experiments.models import Experiment
from service.settings import Settings
from service.webhooks.models import Webhook
from service.workers.models import Drain, Worker, WorkerSample

ALL = (AuditEntry, Dataset, Drain, Experiment, User, Webhook, Worker, WorkerSample)
TABLES = {table.__tablename__ for table in ALL}
assert TABLES <= set(Base.metadata.tables)


def run() -> None:
    url = context.config.attributes.get("url") or Settings().url
    with (
        closing(Database(url, timeouts=NO_TIMEOUTS)) as database,
        database.engine.connect() as connection,
    ):
        if connection.dialect.name == "sqlite":  # an altered table is recreated
            connection.connection.cursor().execute("PRAGMA foreign_keys=OFF")
        context.configure(
            connection,
            target_metadata=Base.metadata,
            render_as_batch=connection.dialect.name == "sqlite",
            compare_type=True,
        )
        with context.begin_transaction():
            _carry_over(connection)
            context.run_migrations()
        connection.commit()


def _carry_over(connection: Connection) -> None:
    """Bring tables of version 0.2 to the first revision. The migrations go on from there."""
    if context.get_context().get_current_heads() == (VERSION_0_2,):
        from_version_0_2.carry_over(Operations(context.get_context()))
        connection.execute(text("UPDATE alembic_version SET version_num = :to"), {"to": FIRST})


run()
