"""Run migrations on the URL that service.prepare gives, or that the settings name."""

from alembic import context

from service.database import Base, Database
from service.experiments import models as experiments
from service.settings import Settings
from service.users import User

assert experiments.Experiment.metadata is User.metadata is Base.metadata


def run() -> None:
    url = context.config.attributes.get("url") or Settings().url
    with Database(url).engine.connect() as connection:
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
