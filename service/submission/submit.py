"""Submit experiments: one or many, new or retried, single or as points of a sweep. All experiments
of a request are stored in one transaction with a few statements, or none of them.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session
from uuid6 import uuid7

from service.accounts import audit
from service.accounts.models import AuditEntry
from service.accounts.permissions import check_still_valid, find_readable
from service.accounts.users import Caller
from service.db.engine import Database
from service.db.notices import notify
from service.experiments import store
from service.experiments.models import Event, Experiment, Held, Status, Wait
from service.fair_share import FairShare
from service.queue import holds, quota
from service.queue.sizes import EXPERIMENT_BYTES, of_texts
from service.refusals import unavailable
from service.settings import Settings
from service.submission import idempotency
from service.submission.idempotency import IdempotentRequest
from service.submission.models import KeptRequest
from service.submission.preparation import (
    BESIDE,
    Prepared,
    PreparedExperiment,
    Submissions,
    check_sample,
    prepare,
)
from service.submission.requests import SubmissionRequest
from service.sweeps import store as sweeps
from service.sweeps.expansion import check_stored
from service.sweeps.models import Sweep, SweepPoint

MAX_PREPARED = 5
"""Maximum number of times that a request is prepared. It is prepared again if data that it depends
on have changed. It is never prepared in the transaction that stores it, because other writers would
wait: seconds for a sweep of 10,000 points."""
PREPARE_S = 1.0
"""Time after which a request is not prepared again. Other large requests wait meanwhile."""

# Tables, not classes: for thousands of rows the ORM takes as long as the database does.
_EXPERIMENTS, _EVENTS, _POINTS, _WAITS = (
    Experiment.metadata.tables[table.__tablename__]
    for table in (Experiment, Event, SweepPoint, Wait)
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The experiment of a submission. `cached_from` is the id of an earlier experiment with the
    same result, or None."""

    id: str
    cached_from: str | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The outcome of each submission of a request. A repeated request for a sweep has only the
    sweep and the number of its first point."""

    outcomes: Sequence[Outcome]
    sweep_id: str = ""
    first: int = 0

    @property
    def is_all_cached(self) -> bool:
        """True if the request has stored nothing."""
        return not self.sweep_id and all(one.cached_from for one in self.outcomes)

    def kept(self) -> list[Any]:
        """Return the stored request of an idempotency key."""
        return [self.sweep_id, self.first] if self.sweep_id else [*map(asdict, self.outcomes)]


@contextmanager
def submitted(
    database: Database,
    settings: Settings,
    user: Caller,
    request: SubmissionRequest,
    *,
    key: IdempotentRequest | None = None,
) -> Iterator[tuple[Session, Accepted]]:
    """Carry out a request, and yield the transaction and the outcome of each submission. A request
    that was accepted before under its key is not checked again. Raises ApiError."""
    if key is not None:
        with database.snapshot() as session:
            kept = idempotency.find(session, user.id, key)
            before = _accepted_before(session, user, key, kept)
            if before is not None:
                yield session, before
                return
    began = time.monotonic()
    for _ in range(MAX_PREPARED):
        with database.snapshot() as session:
            submissions = request.submissions(session, settings, user)
            check_sample(session, settings, submissions)
            prepared = prepare(session, settings, submissions)
        try:
            with database.transaction() as session:
                yield session, _stored(session, settings, user, request, submissions, prepared, key)
                return
        except _Changed:
            if time.monotonic() > began + PREPARE_S:
                break
    detail = "what the request refers to changed while it was checked; nothing was stored"
    raise unavailable("changed_meanwhile", f"{detail}, try again")


class _Changed(Exception):
    """Data that the prepared experiments depend on have changed."""


def _stored(
    session: Session,
    settings: Settings,
    user: Caller,
    request: SubmissionRequest,
    submissions: Submissions,
    prepared: Prepared,
    key: IdempotentRequest | None,
) -> Accepted:
    """Store the prepared experiments of a request, or return what it stored before under its key.
    Raises _Changed and ApiError."""
    check_still_valid(session, user)
    if key is not None:
        kept = idempotency.claim(session, user.id, key)
        before = _accepted_before(session, user, key, kept)
        if before is not None:
            return before
    sweep = request.sweep(session, settings, user)
    if not _is_unchanged(session, user, submissions, prepared, sweep):
        raise _Changed
    accepted = insert_all(
        session,
        submissions.owner_id,
        prepared.experiments,
        by=user,
        fair_share=settings.share,
        sweep=sweep,
    )
    if key is not None:
        assert kept is not None
        made = accepted.kept()
        size = idempotency.size_of(key.key, made)
        if accepted.is_all_cached and not _has_room(session, settings, user, size):
            made = []  # without space the key stays free, because nothing was stored
        idempotency.keep(session, kept, key, made)
    return accepted


def _has_room(session: Session, settings: Settings, user: Caller, size: int) -> bool:
    return quota.room_of(session, user.id, settings.share).holds(size)


def _accepted_before(
    session: Session, user: Caller, key: IdempotentRequest, kept: KeptRequest | None
) -> Accepted | None:
    """Return the earlier results of the same request. If all of them are deleted, the key is free.
    Raises ApiError."""
    if kept is None or not kept.made:
        return None
    if isinstance(kept.made[0], str):
        before = Accepted((), *kept.made)
        there = find_readable(session, user, Sweep, before.sweep_id) is not None
    else:
        before = Accepted([Outcome(one["id"], one["cached_from"]) for one in kept.made])
        there = bool(store.readable_ids(session, user, [one.id for one in before.outcomes]))
    if not there:
        return None
    key.check_same(kept)
    return before


def _is_unchanged(
    session: Session,
    user: Caller,
    submissions: Submissions,
    prepared: Prepared,
    sweep: Sweep | None,
) -> bool:
    """Return whether the data that the prepared experiments depend on are unchanged."""
    cached = {one.cached_from for one in prepared.experiments if one.cached_from is not None}
    old = [one.retry_of for one in prepared.experiments if one.retry_of is not None]
    return (
        prepared.inputs.is_unchanged(session, submissions.owner_id)
        and (not cached or store.readable_ids(session, user, [*cached]) == cached)
        and _is_retryable(session, old, sweep)
    )


def _is_retryable(session: Session, old: Sequence[Experiment], sweep: Sweep | None) -> bool:
    """Return whether old experiments are unchanged, and still points of their sweep."""
    if not old:
        return True
    names = ("id", *BESIDE)
    query = select(*(getattr(Experiment, name) for name in names)).where(
        Experiment.id.in_([one.id for one in old]), Experiment.deleted_at.is_(None)
    )
    if sweep is not None:
        point = select(SweepPoint).filter_by(sweep_id=sweep.id)
        query = query.where(point.where(SweepPoint.experiment_id == Experiment.id).exists())
    rows = {row.id: tuple(row) for row in session.execute(query)}
    return rows == {one.id: tuple(getattr(one, name) for name in names) for one in old}


def insert_all(
    session: Session,
    owner_id: int,
    experiments: Sequence[PreparedExperiment],
    *,
    by: Caller,
    fair_share: FairShare,
    sweep: Sweep | None = None,
) -> Accepted:
    """Insert experiments into the queue, with their events, and as points into their sweep. The
    audit log gets a line for each experiment outside a sweep. Raises ApiError if the owner would
    have too many."""
    new = [one for one in experiments if one.cached_from is None]
    ids = [uuid7().hex for _ in new]
    rows = [
        {**one.columns, **_of_sweep(sweep, one), "id": id, "owner_id": owner_id}
        for id, one in zip(ids, new, strict=True)
    ]
    if rows:
        size = sum(row["spec_bytes"] for row in rows)
        if sweep is not None and rows[0]["retry_of"] is None:
            check_stored(size, len(rows))
        for sweep_id in {row["sweep_id"] for row in rows} - {None}:
            sweeps.check_room(session, sweep_id, len(rows), size)
        _check_and_count(session, owner_id, rows, fair_share)
        session.execute(insert(_EXPERIMENTS), rows)
        status = {"kind": "status", "data": {"status": Status.QUEUED}}
        session.execute(insert(_EVENTS), [{"experiment_id": id, **status} for id in ids])
        notify(session)
    successors = {row["retry_of"]: row["id"] for row in rows if row["retry_of"]}
    sweeps.replace(session, successors)
    if sweep is None and rows:
        retries = ({"retry_of": row["retry_of"]} if row["retry_of"] else {} for row in rows)
        lines = zip(ids, retries, strict=True)
        action = "experiment.submitted"
        session.execute(
            insert(AuditEntry), [audit.line(by, action, id, **details) for id, details in lines]
        )
    made = iter(ids)
    outcomes = [Outcome(one.cached_from or next(made), one.cached_from) for one in experiments]
    accepted = Accepted(outcomes)
    if sweep is not None and outcomes and not successors:
        accepted = Accepted(outcomes, sweep.id, _insert_points(session, sweep, outcomes))
    waits = [
        {"experiment_id": id, "after_id": after_id}
        for id, one in zip(ids, new, strict=True)
        for after_id in one.unfinished
    ]
    if waits:
        session.execute(insert(_WAITS), waits)
    for sweep_id in {row["sweep_id"] for row in rows if row["held"] == Held.SWEEP}:
        holds.fill(session, sweep_id)
    return accepted


def _of_sweep(sweep: Sweep | None, one: PreparedExperiment) -> dict[str, Any]:
    """Return the columns of a point of a sweep that differ from those of other experiments. A new
    point copies some from the sweep. Points are held until `holds.fill` releases them, except those
    of a sweep that is known to have no limit, because its row is locked."""
    columns: dict[str, Any] = {"sweep_id": one.columns["sweep_id"]}
    if sweep is not None and one.retry_of is None:
        columns = {name: getattr(sweep, name) for name in ("tags", "priority", "visibility")}
        spec_bytes = one.columns["spec_bytes"] + of_texts(None, sweep.tags, None)
        columns |= {"sweep_id": sweep.id, "spec_bytes": spec_bytes}
    is_limited = sweep is None or sweep.concurrency is not None
    if columns["sweep_id"] is not None and is_limited and one.columns["held"] == Held.NOT:
        columns["held"] = Held.SWEEP
    return columns


def _check_and_count(
    session: Session, owner_id: int, rows: Sequence[dict[str, Any]], fair_share: FairShare
) -> None:
    """Check the owner's limits, and count the bytes of the experiments. Raises ApiError."""
    highest = max(row["priority"] for row in rows)
    stored = sum(EXPERIMENT_BYTES + row["spec_bytes"] for row in rows)
    needed = stored + sum(row["expected_bytes"] for row in rows)
    quota.check_limits(session, owner_id, highest, len(rows), fair_share, needed)


def _insert_points(session: Session, sweep: Sweep, outcomes: Sequence[Outcome]) -> int:
    """Append points to a sweep, and return the number of the first."""
    first = sweeps.number_of_points(session, sweep.id)
    rows = [
        {"sweep_id": sweep.id, "point": point, "experiment_id": one.id}
        for point, one in enumerate(outcomes, first)
    ]
    session.execute(insert(_POINTS), rows)
    return first
