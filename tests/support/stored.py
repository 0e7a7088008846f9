"""Rows of the tables for one experiment."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import event, select, update
from sqlalchemy.orm import Session

from service.accounts.models import ApiKey
from service.accounts.users import Caller
from service.db.engine import Database
from service.experiments.models import Event, Experiment
from service.experiments.schemas import Submission
from service.fair_share import FairShare
from service.queue.memory import Memory
from service.queue.quota import UNLIMITED, room_of
from service.settings import Settings
from service.submission.idempotency import Accepted, IdempotentRequest
from service.submission.preparation import (
    Entry,
    Prepared,
    PreparedExperiment,
    columns_of,
    retry_entry,
)
from service.submission.requests import Bodies
from service.submission.submit import insert_all, submitted
from service.vocabulary import Role

LOCAL = Caller(1, "local", Role.MEMBER, "key", frozenset())


def prepared(
    entry: Entry, memory: Memory | None = None, unfinished: Sequence[str] = ()
) -> PreparedExperiment:
    """An experiment to be inserted. Nothing is checked."""
    assert isinstance(entry.sent, Submission)
    document = entry.sent.spec.model_dump(mode="json")
    columns = columns_of(entry.sent, document, entry.retry_of, memory, unfinished)
    return PreparedExperiment(entry.sent, columns, unfinished, retry_of=entry.retry_of)


def submit(
    session: Session,
    owner_id: int,
    submission: Submission,
    *,
    memory: Memory | None = None,
    unfinished: Sequence[str] = (),
    by: Caller = LOCAL,
    fair_share: FairShare | None = None,
) -> Experiment:
    """A new experiment in the queue."""
    one = prepared(Entry(submission), memory, unfinished)
    fair_share = fair_share or FairShare()
    room = room_of(session, owner_id, fair_share)
    request = Prepared(owner_id, [one], room, predecessors=unfinished)
    accepted = insert_all(session, request, by=by, fair_share=fair_share)
    return session.get_one(Experiment, accepted.outcomes[0].id)


def retry(
    session: Session, old: Experiment, *, by: Caller = LOCAL, unfinished: Sequence[str] = ()
) -> Experiment:
    """A new experiment like an old one."""
    one = prepared(retry_entry(old), unfinished=unfinished)
    request = Prepared(old.owner_id, [one], UNLIMITED, predecessors=unfinished)
    accepted = insert_all(session, request, by=by, fair_share=FairShare())
    return session.get_one(Experiment, accepted.outcomes[0].id)


def sent(
    database: Database,
    settings: Settings,
    submission: Submission,
    before_commit: Callable[[], object] = lambda: None,
) -> Accepted:
    """Submit under an Idempotency-Key, and call a function before it is committed."""
    with database.transaction() as session:
        if session.get(ApiKey, LOCAL.key_id) is None:
            session.add(ApiKey(id=LOCAL.key_id, user_id=1, secret_sha256=b"", scopes=[]))
    idempotent = IdempotentRequest("key", "POST /v1/experiments", b"the same")

    def committing(_: object) -> None:
        before_commit()

    event.listen(database.engine, "commit", committing)
    try:
        return submitted(database, settings, LOCAL, Bodies([submission]), key=idempotent)
    finally:
        event.remove(database.engine, "commit", committing)


def row(database: Database, experiment_id: str) -> Experiment:
    with database.snapshot() as session:
        return session.get_one(Experiment, experiment_id)


def change(database: Database, experiment_id: str, **columns: Any) -> None:
    """Bring an experiment where a test needs it."""
    with database.transaction() as session:
        session.execute(update(Experiment).where(Experiment.id == experiment_id).values(**columns))


def status_events(database: Database, experiment_id: str) -> list[dict[str, Any]]:
    """Return the status events of an experiment in order."""
    query = select(Event.data).where(Event.experiment_id == experiment_id, Event.kind == "status")
    with database.snapshot() as session:
        return [*session.scalars(query.order_by(Event.id))]
