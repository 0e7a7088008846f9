"""What stands in the tables about one experiment."""

from typing import Any

from sqlalchemy import select, update

from service.database import Database
from service.experiments.models import Event, Experiment


def row(database: Database, experiment_id: str) -> Experiment:
    with database.snapshot() as session:
        return session.get_one(Experiment, experiment_id)


def change(database: Database, experiment_id: str, **columns: Any) -> None:
    """Bring an experiment where a test needs it."""
    with database.transaction() as session:
        session.execute(update(Experiment).where(Experiment.id == experiment_id).values(**columns))


def status_events(database: Database, experiment_id: str) -> list[dict[str, Any]]:
    """What was noted of an experiment's states, in order."""
    query = select(Event.data).where(Event.experiment_id == experiment_id, Event.kind == "status")
    with database.snapshot() as session:
        return [*session.scalars(query.order_by(Event.id))]
