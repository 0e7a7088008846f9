"""Submitting and finding experiments. Every query names the owner whose they are, or the reader to
whom they are open; what was deleted is in none."""

import hashlib
from collections.abc import Sequence

from sqlalchemy import bindparam, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, defer, joinedload
from uuid6 import uuid7

from service import audit
from service.experiments.models import Artifact, Experiment, Metric, Status
from service.experiments.schemas import Submission
from service.experiments.states import note_status
from service.sharing import Visibility, Whose, readable, reader, shared
from service.users import Caller

_BY_ID = (
    select(Experiment)
    .where(Experiment.id == bindparam("id"), Experiment.deleted_at.is_(None))
    .options(joinedload(Experiment.owner))
    .execution_options(populate_existing=True)
)
_OWN = _BY_ID.where(Experiment.owner_id == bindparam("owner_id"))
_READABLE = _BY_ID.where(readable(Experiment))
_METRICS = select(Metric).where(Metric.experiment_id == bindparam("id")).order_by(Metric.seq)
"""Made once: to make a statement costs as much as to execute it."""


class KeyReused(Exception):
    """An idempotency key came with another request than the one it was first sent with."""


def submitted(
    session: Session, owner_id: int, submission: Submission, idempotency_key: str | None
) -> Experiment | None:
    """What the same submission made under the same key before; None where the key is new. Raises
    KeyReused."""
    if idempotency_key is None:
        return None
    return _made(session, owner_id, idempotency_key, _digest(submission))


def submit(
    session: Session,
    owner_id: int,
    submission: Submission,
    idempotency_key: str | None = None,
    by: Caller | None = None,
) -> Experiment:
    """Store a new experiment in the queue, or find what the same submission made under the same
    key before. Raises KeyReused."""
    experiment = Experiment(
        id=uuid7().hex,
        owner_id=owner_id,
        spec=submission.spec.model_dump(mode="json"),
        idempotency_key=idempotency_key,
        submission_sha256=_digest(submission),
        **submission.model_dump(include={"name", "tags", "note", "priority", "visibility"}),
    )
    return _enqueue_once(session, experiment, by)


def _digest(submission: Submission) -> str:
    """The same for what was sent before there was a visibility."""
    added = {"visibility"} if submission.visibility == Visibility.PRIVATE else set()
    return hashlib.sha256(submission.model_dump_json(exclude=added).encode()).hexdigest()


def retried(
    session: Session, old: Experiment, idempotency_key: str | None = None
) -> Experiment | None:
    """What the same retry made under the same key before; None where the key is new. Raises
    KeyReused."""
    if idempotency_key is None:
        return None
    return _made(session, old.owner_id, idempotency_key, _retry_digest(old))


def retry(
    session: Session,
    old: Experiment,
    idempotency_key: str | None = None,
    by: Caller | None = None,
) -> Experiment:
    """Queue a new experiment like an old one, or find what the same retry made under the same key
    before. Raises KeyReused."""
    kept = ("owner_id", "name", "tags", "note", "priority", "visibility", "spec")
    experiment = Experiment(
        id=uuid7().hex,
        retry_of=old.id,
        idempotency_key=idempotency_key,
        submission_sha256=_retry_digest(old),
        **{name: getattr(old, name) for name in kept},
    )
    return _enqueue_once(session, experiment, by)


def _retry_digest(old: Experiment) -> str:
    return hashlib.sha256(f"retry {old.id}".encode()).hexdigest()


def _enqueue_once(session: Session, experiment: Experiment, by: Caller | None) -> Experiment:
    if experiment.idempotency_key is None:
        return _enqueue(session, experiment, by)
    owner_id, key = experiment.owner_id, experiment.idempotency_key
    digest = experiment.submission_sha256
    # A savepoint: the unique key decides between two requests at the same time.
    try:
        with session.begin_nested():
            return _enqueue(session, experiment, by)
    except IntegrityError:
        first = _made(session, owner_id, key, digest)
        if first is None:
            raise
        return first


def _made(session: Session, owner_id: int, key: str, digest: str | None) -> Experiment | None:
    """What a request of this digest made under the owner's key. Raises KeyReused."""
    first = session.scalar(
        select(Experiment).where(Experiment.owner_id == owner_id, Experiment.idempotency_key == key)
    )
    if first is None:
        return None
    if first.submission_sha256 != digest:
        raise KeyReused
    return find(session, owner_id, first.id)


def _enqueue(session: Session, experiment: Experiment, by: Caller | None) -> Experiment:
    session.add(experiment)
    session.flush()
    note_status(session, experiment.id, Status.QUEUED)
    if by is not None:
        details = {"retry_of": experiment.retry_of} if experiment.retry_of else {}
        audit.note(session, by, "experiment.submitted", experiment.id, **details)
    stored = find(session, experiment.owner_id, experiment.id)
    assert stored is not None
    return stored


def find(session: Session, owner_id: int, experiment_id: str) -> Experiment | None:
    """The experiment of that id as it stands, if it is the owner's."""
    return session.scalar(_OWN, {"id": experiment_id, "owner_id": owner_id})


def find_readable(
    session: Session, reader_id: int, experiment_id: str, reads_all: bool = False
) -> Experiment | None:
    """The experiment of that id, if the reader owns it, if it is shared with the lab, or if the
    reader reads all."""
    return session.scalar(_READABLE, {"id": experiment_id, **reader(reader_id, reads_all)})


def readable_ids(session: Session, user: Caller, experiment_ids: Sequence[str]) -> set[str]:
    """Those of these experiments that are open to the caller."""
    query = select(Experiment.id).where(
        Experiment.id.in_(experiment_ids), Experiment.deleted_at.is_(None), readable(Experiment)
    )
    return set(session.scalars(query, reader(user.id, user.is_admin)))


def newest(
    session: Session,
    owner_id: int,
    *,
    whose: Whose = Whose.MINE,
    limit: int,
    before: str | None = None,
    status: Status | None = None,
    with_spec: bool = False,
) -> Sequence[Experiment]:
    """The owner's experiments, those shared with the lab, or all, newest first, that are older than
    `before`. Specs are large: they are read only where they are asked for."""
    query = select(Experiment).where(Experiment.deleted_at.is_(None))
    query = query.options(joinedload(Experiment.owner))
    if whose == Whose.MINE:
        query = query.where(Experiment.owner_id == owner_id)
    if whose == Whose.LAB:
        query = query.where(shared(Experiment))
    if not with_spec:
        query = query.options(defer(Experiment.spec, raiseload=True))
    if before is not None:
        query = query.where(Experiment.id < before)
    if status is not None:
        query = query.where(Experiment.status == status)
    return session.scalars(query.order_by(Experiment.id.desc()).limit(limit)).all()


def metrics(session: Session, experiment_id: str) -> Sequence[Metric]:
    """An experiment's metrics, in the order they were found."""
    return session.scalars(_METRICS, {"id": experiment_id}).all()


def artifacts(session: Session, experiment_id: str) -> Sequence[Artifact]:
    """The files that an experiment left, in the order they were made."""
    query = select(Artifact).where(Artifact.experiment_id == experiment_id)
    return session.scalars(query.order_by(Artifact.seq)).all()
