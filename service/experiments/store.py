"""Submitting and finding experiments. Every query of an owner's data names the owner."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.experiments.models import Experiment, Metric, Status
from service.experiments.queue import note_status
from service.experiments.schemas import Submission


def submit(session: Session, owner_id: int, submission: Submission) -> Experiment:
    """Store a new experiment in the queue."""
    experiment = Experiment(
        owner_id=owner_id,
        spec=submission.spec.model_dump(mode="json"),
        **submission.model_dump(include={"name", "tags", "note", "priority"}),
    )
    session.add(experiment)
    session.flush()
    note_status(session, experiment.id, Status.QUEUED)
    return experiment


def find(session: Session, owner_id: int, experiment_id: str) -> Experiment | None:
    """The experiment of that id, if it is the owner's."""
    return session.scalar(
        select(Experiment).where(Experiment.id == experiment_id, Experiment.owner_id == owner_id)
    )


def newest(
    session: Session,
    owner_id: int,
    *,
    limit: int,
    before: str | None = None,
    status: Status | None = None,
) -> Sequence[Experiment]:
    """The owner's experiments, newest first, that are older than `before`."""
    query = select(Experiment).where(Experiment.owner_id == owner_id)
    if before is not None:
        query = query.where(Experiment.id < before)
    if status is not None:
        query = query.where(Experiment.status == status)
    return session.scalars(query.order_by(Experiment.id.desc()).limit(limit)).all()


def metrics(session: Session, experiment_id: str) -> Sequence[Metric]:
    """An experiment's metrics, in the order they were found."""
    query = select(Metric).where(Metric.experiment_id == experiment_id)
    return session.scalars(query.order_by(Metric.seq)).all()
