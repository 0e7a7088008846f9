"""Submitting and finding experiments. Every query names the owner whose they are, or the reader to
whom they are open; what was deleted is in none."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, defer, joinedload, undefer
from uuid6 import uuid7

from service import audit, quota
from service.experiments import holds
from service.experiments.memory import Memory
from service.experiments.models import (
    UNFINISHED,
    Artifact,
    Attempt,
    Event,
    Experiment,
    Held,
    Metric,
    Status,
)
from service.experiments.schemas import Submission
from service.experiments.sent import Unsized
from service.experiments.shares import MOST_PRIORITY
from service.experiments.sizes import POINT_BYTES, of_texts
from service.experiments.states import note_status, wait_for
from service.fair_share import FairShare
from service.sharing import readable, reader
from service.sweeps.models import KeptRequest
from service.users import Caller, User

_BY_ID = (
    select(Experiment)
    .where(Experiment.id == bindparam("id"), Experiment.deleted_at.is_(None))
    .options(joinedload(Experiment.owner))
    .execution_options(populate_existing=True)
)
_OWN = _BY_ID.where(Experiment.owner_id == bindparam("owner_id"))
_READABLE = _BY_ID.where(readable(Experiment))
_METRICS = select(Metric).where(Metric.experiment_id == bindparam("id")).order_by(Metric.seq)
_ATTEMPTS = (
    select(Attempt)
    .where(Attempt.experiment_id == bindparam("id"))
    .order_by(Attempt.attempt)
    .options(undefer(Attempt.environment))
)
"""Built once, because building a statement takes as long as executing it."""


class Refused(Exception):
    """A submission that is not allowed. `reason` is a stable word for programs."""

    def __init__(self, reason: str, detail: str):
        super().__init__(detail)
        self.reason = reason


class KeyReused(Exception):
    """An idempotency key was first used with another request."""


def submitted(
    session: Session, owner_id: int, sent: Submission | Unsized, idempotency_key: str | None
) -> Experiment | None:
    """Return the experiment that the same submission created under the same key; None for a new
    key. Raises KeyReused."""
    if idempotency_key is None:
        return None
    if session.get(KeptRequest, (owner_id, idempotency_key)) is not None:
        raise KeyReused
    return _made(session, owner_id, idempotency_key, _digest(sent))


def submit(
    session: Session,
    owner_id: int,
    submission: Submission,
    idempotency_key: str | None = None,
    *,
    sent: Unsized | None = None,
    by: Caller | None = None,
    sharing: FairShare | None = None,
    memory: Memory | None = None,
    unfinished: Sequence[str] = (),
    cache_key: str | None = None,
) -> Experiment:
    """Store a new experiment in the queue, or find what the same submission made under the same
    key before; `sent` is what came where something had to be filled in. It waits for those of the
    experiments that it comes after that are `unfinished`. Raises KeyReused, and Refused where the
    user has as many as it may."""
    experiment = Experiment(
        id=uuid7().hex,
        owner_id=owner_id,
        idempotency_key=idempotency_key,
        submission_sha256=_digest(sent or submission),
        **columns_of(submission, memory, unfinished, cache_key),
    )
    return _enqueue_once(session, experiment, by, sharing or FairShare(), unfinished)


def columns_of(
    submission: Submission,
    memory: Memory | None,
    unfinished: Sequence[str],
    cache_key: str | None = None,
) -> dict[str, Any]:
    """Return the columns of a submission's experiment."""
    after = [*dict.fromkeys([*submission.after, *unfinished])]
    spec = submission.spec.model_dump(mode="json")
    return {
        "spec": spec,
        "spec_bytes": len(json.dumps(spec))
        + of_texts(submission.name, submission.tags, submission.note),
        "expected_bytes": submission.spec.point_count().total * POINT_BYTES,
        "memory_bytes": memory.expected if memory else None,
        "estimated_bytes": memory.by_spec if memory else None,
        "comes_after": after or None,
        "cache_key": cache_key,
        "held": Held.AFTER if unfinished else Held.NOT,
        **submission.model_dump(include={"name", "tags", "note", "priority", "visibility"}),
    }


def _digest(submission: Submission | Unsized) -> str:
    """Return the digest of a submission. Fields that were added later do not change it if they are
    not given."""
    if isinstance(submission, Unsized):
        return hashlib.sha256(submission.text.encode()).hexdigest()
    added = {
        name for name in ("visibility", "after", "cache")
        if getattr(submission, name) == Submission.model_fields[name].default
    }  # fmt: skip
    return hashlib.sha256(submission.model_dump_json(exclude=added).encode()).hexdigest()


def retried(
    session: Session, old: Experiment, idempotency_key: str | None = None
) -> Experiment | None:
    """Return the experiment that the same retry created under the same key; None for a new key.
    Raises KeyReused."""
    if idempotency_key is None:
        return None
    return _made(session, old.owner_id, idempotency_key, _retry_digest(old))


def retry(
    session: Session,
    old: Experiment,
    idempotency_key: str | None = None,
    *,
    by: Caller | None = None,
    sharing: FairShare | None = None,
    unfinished: Sequence[str] = (),
    cache_key: str | None = None,
) -> Experiment:
    """Queue a new experiment like an old one, or return what the same retry created under the same
    key. It replaces the old one in a sweep. Raises KeyReused and Refused."""
    experiment = Experiment(
        id=uuid7().hex,
        idempotency_key=idempotency_key,
        submission_sha256=_retry_digest(old),
        **columns_again(old, unfinished, cache_key),
    )
    return _enqueue_once(session, experiment, by, sharing or FairShare(), unfinished)


def columns_again(
    old: Experiment, unfinished: Sequence[str], cache_key: str | None
) -> dict[str, Any]:
    """Return the columns of a retry."""
    kept = ("owner_id", "name", "tags", "note", "priority", "visibility", "spec", "device",
            "memory_bytes", "estimated_bytes", "spec_bytes", "expected_bytes", "sweep_id",
            "comes_after")  # fmt: skip
    held = Held.AFTER if unfinished else Held.NOT
    same = {name: getattr(old, name) for name in kept}
    return {"retry_of": old.id, "held": held, "cache_key": cache_key, **same}


def _retry_digest(old: Experiment) -> str:
    return hashlib.sha256(f"retry {old.id}".encode()).hexdigest()


def _enqueue_once(
    session: Session,
    experiment: Experiment,
    by: Caller | None,
    sharing: FairShare,
    unfinished: Sequence[str],
) -> Experiment:
    if experiment.idempotency_key is None:
        return _enqueue(session, experiment, by, sharing, unfinished)
    owner_id, key = experiment.owner_id, experiment.idempotency_key
    digest = experiment.submission_sha256
    # A savepoint: the unique key decides between two requests at the same time.
    try:
        with session.begin_nested():
            return _enqueue(session, experiment, by, sharing, unfinished)
    except (IntegrityError, Refused):
        first = _made(session, owner_id, key, digest)
        if first is None:
            raise
        return first


def _made(session: Session, owner_id: int, key: str, digest: str | None) -> Experiment | None:
    """Return what a request with this digest created under the owner's key. Raises KeyReused."""
    first = session.scalar(
        select(Experiment).where(Experiment.owner_id == owner_id, Experiment.idempotency_key == key)
    )
    if first is None:
        return None
    if first.submission_sha256 != digest:
        raise KeyReused
    return find(session, owner_id, first.id)


def _enqueue(
    session: Session,
    experiment: Experiment,
    by: Caller | None,
    sharing: FairShare,
    unfinished: Sequence[str],
) -> Experiment:
    owner_id, size = experiment.owner_id, experiment.spec_bytes
    needed = size + experiment.expected_bytes
    check_limits(session, owner_id, experiment.priority, 1, sharing, needed)
    session.add(experiment)
    session.flush()
    quota.note(session, owner_id, size)
    if experiment.retry_of and experiment.sweep_id:
        holds.take_places(session, {experiment.retry_of: experiment.id})
    note_status(session, experiment.id, Status.QUEUED)
    if by is not None:
        details = {"retry_of": experiment.retry_of} if experiment.retry_of else {}
        audit.note(session, by, "experiment.submitted", experiment.id, **details)
    wait_for(session, {experiment.id: unfinished})
    stored = find(session, experiment.owner_id, experiment.id)
    assert stored is not None
    return stored


def check_limits(
    session: Session, owner_id: int, priority: int, more: int, sharing: FairShare, needed: int = 0
) -> None:
    """Raises Refused if a user may not have `more` experiments, which need `needed` bytes.
    Submissions of one user pass here one at a time, so that two do not both take the last place.
    """
    check_priority(session, owner_id, priority)
    count, most = submitted_of(session, owner_id, sharing)
    if count + more > most:
        asked = "" if more == 1 else f"; these are {more} more"
        detail = f"{count} of your experiments have not ended, and your limit is {most}{asked}"
        raise Refused("limit_reached", detail)
    check_bytes(session, owner_id, sharing, needed)


def check_bytes(session: Session, owner_id: int, sharing: FairShare, needed: int) -> None:
    """Check that a user may keep so many more bytes. Raises Refused."""
    if (problem := quota.room_of(session, owner_id, sharing).problem(needed)) is not None:
        raise Refused("storage_quota", problem)


def change(
    session: Session, experiment: Experiment, changes: Mapping[str, Any], sharing: FairShare
) -> None:
    """Change columns of an experiment, and count the bytes of its texts. Raises Refused."""
    check_priority(session, experiment.owner_id, changes.get("priority", 0))
    session.refresh(experiment)  # no other change passes the lock that was taken
    before = of_texts(experiment.name, experiment.tags, experiment.note)
    for name, value in changes.items():
        setattr(experiment, name, value)
    more = of_texts(experiment.name, experiment.tags, experiment.note) - before
    if more > 0:
        check_bytes(session, experiment.owner_id, sharing, more)
    experiment.spec_bytes += more
    quota.note(session, experiment.owner_id, more)


def check_priority(session: Session, owner_id: int, priority: int) -> None:
    """Raises Refused if the owner may not use this priority. Locks the user's row."""
    may_jump = session.scalar(
        select(User.may_jump).where(User.id == owner_id).with_for_update(key_share=True)
    )
    if priority > MOST_PRIORITY and not may_jump:
        detail = f"a priority above {MOST_PRIORITY} jumps the queue: an administrator allows it"
        raise Refused("may_not_jump", detail)


def submitted_of(session: Session, owner_id: int, sharing: FairShare) -> tuple[int, int]:
    """Return how many experiments of a user have not ended, and the limit."""
    own = session.scalar(select(User.max_submitted).where(User.id == owner_id))
    mine = select(func.count()).where(
        Experiment.owner_id == owner_id, Experiment.status.in_(UNFINISHED)
    )
    return session.scalar(mine) or 0, sharing.max_submitted if own is None else own


def next_in_turn(session: Session, owner_id: int, limit: int) -> Sequence[Experiment]:
    """Return the owner's queued experiments in the order in which they would run."""
    query = (
        select(Experiment)
        .where(Experiment.owner_id == owner_id, Experiment.status == Status.QUEUED)
        .options(defer(Experiment.spec, raiseload=True))
    )
    order = (Experiment.held != Held.NOT, Experiment.priority.desc(), Experiment.id)
    return session.scalars(query.order_by(*order).limit(limit)).all()


def find(session: Session, owner_id: int, experiment_id: str) -> Experiment | None:
    """Return the experiment if it is the owner's."""
    return session.scalar(_OWN, {"id": experiment_id, "owner_id": owner_id})


def find_readable(
    session: Session, reader_id: int, experiment_id: str, reads_all: bool = False
) -> Experiment | None:
    """Return the experiment if the reader owns it, if it is shared with the lab, or if the reader
    may read everything."""
    return session.scalar(_READABLE, {"id": experiment_id, **reader(reader_id, reads_all)})


def named(
    session: Session, reader_id: int, experiment_ids: Collection[str]
) -> Sequence[Experiment]:
    """Return those of these experiments that are open to the reader. They may end at any time."""
    if not experiment_ids:
        return ()
    query = (
        select(Experiment)
        .where(Experiment.id.in_(experiment_ids), Experiment.deleted_at.is_(None))
        .where(readable(Experiment))
        .order_by(Experiment.id)
        .execution_options(populate_existing=True)
    )
    return session.scalars(query, reader(reader_id)).all()


def readable_ids(session: Session, user: Caller, experiment_ids: Sequence[str]) -> set[str]:
    """Return the ids of those of these experiments that the caller may read."""
    query = select(Experiment.id).where(
        Experiment.id.in_(experiment_ids), Experiment.deleted_at.is_(None), readable(Experiment)
    )
    return set(session.scalars(query, reader(user.id, user.is_admin)))


def readable_ones(
    session: Session, user: Caller, experiment_ids: Sequence[str], *, whole: bool = False
) -> Sequence[Experiment]:
    """Return those of these experiments that the caller may read, with specs and owners."""
    query = select(Experiment).where(
        Experiment.id.in_(experiment_ids), Experiment.deleted_at.is_(None), readable(Experiment)
    )
    more = joinedload(Experiment.owner) if whole else defer(Experiment.spec, raiseload=True)
    return session.scalars(query.options(more), reader(user.id, user.is_admin)).all()


def metrics(session: Session, experiment_id: str) -> Sequence[Metric]:
    """Return an experiment's metrics in the order of their records."""
    return session.scalars(_METRICS, {"id": experiment_id}).all()


def metrics_of(
    session: Session, ids: Sequence[str], names: Sequence[str] | None
) -> dict[str, list[Metric]]:
    """Return the metrics with these names, or all, by experiment."""
    if names is not None and not names:
        return {}
    query = select(Metric).where(Metric.experiment_id.in_(ids))
    if names is not None:
        query = query.where(Metric.name.in_(names))
    found: dict[str, list[Metric]] = {one: [] for one in ids}
    for metric in session.scalars(query.order_by(Metric.seq)):
        found[metric.experiment_id].append(metric)
    return found


def attempts(session: Session, experiment_id: str) -> Sequence[Attempt]:
    """Return an experiment's attempts and their environments, oldest first."""
    return session.scalars(_ATTEMPTS, {"id": experiment_id}).all()


def artifacts(session: Session, experiment_id: str) -> Sequence[Artifact]:
    """Return the files of an experiment in the order of their records."""
    query = select(Artifact).where(Artifact.experiment_id == experiment_id)
    return session.scalars(query.order_by(Artifact.seq)).all()


def logs(
    session: Session, experiment_id: str, after: int, level: str | None, limit: int
) -> Sequence[Event]:
    """Return the lines of an experiment's log after a record, in order."""
    query = select(Event).where(Event.experiment_id == experiment_id, Event.kind == "log")
    if level is not None:
        query = query.where(Event.data["level"].as_string() == level)
    return session.scalars(query.where(Event.seq > after).order_by(Event.seq).limit(limit)).all()
