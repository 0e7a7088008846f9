"""Run migrations on the URL that service.prepare gives, or that the settings name."""

from contextlib import closing

from alembic import context

from service.audit import AuditEntry
from service.database import NO_TIMEOUTS, Base, Database
from service.datasets.models import Dataset
from service.experiments.models import Experiment
from service.settings import Settings
from service.users import User
from service.webhooks.models import Webhook
from service.worker_samples import WorkerSample
from service.workers import Worker

ALL = (AuditEntry, Dataset, Experiment, User, Webhook, Worker, WorkerSample)
TABLES = {table.__tablename__ for table in ALL}
assert TABLES <= set(Base.metadata.tables)


def run() -> None:
    url = context.config.attributes.get("url") or Settings().url
    with (
        closing(Database(url, timeouts=NO_TIMEOUTS)) as database,
        database.engine.connect() as connection,
    ):
        if connection.dialect.name == "sqlite":  # a table that is altered is made anew
            connection.connection.cursor().execute("PRAGMA foreign_keys=OFF")
        context.configure(
            connection,
            target_metadata=Base.metadata,
            render_as_batch=connection.dialect.name == "sqlite",
            compare_type=True,
        )
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()


run()
