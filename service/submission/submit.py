"""Submit experiments: one or many, new or retried, single or as points of a sweep. All experiments
of a request are stored in one transaction with a few statements, or none of them.

A request is prepared once, without a lock. The transaction that stores it locks what the
experiments refer to, so that none of it can be purged meanwhile, and compares it with what was
prepared. PostgreSQL's `FOR KEY SHARE` lets a run that is referred to go on, because its heartbeats
and its end change no key. On SQLite a transaction that writes is alone. The locks are acquired in
this order: idempotency key, sweep, owner, projects, uploads, experiments.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session
from uuid6 import uuid7

from service.accounts import audit
from service.accounts.models import OWN, AuditEntry
from service.accounts.permissions import check_still_valid
from service.accounts.users import Caller
from service.datasets.models import Dataset
from service.db.engine import Database, among
from service.db.notices import notify
from service.db.visibility import readable, reader
from service.experiments.models import Event, Experiment, Held, Wait
from service.fair_share import FairShare
from service.queue import holds, quota
from service.queue.quota import Room
from service.queue.sizes import EXPERIMENT_BYTES, of_texts
from service.refusals import unavailable
from service.settings import Settings
from service.submission import idempotency
from service.submission.idempotency import Accepted, IdempotentRequest, Outcome
from service.submission.preparation import BESIDE, Prepared, PreparedExperiment, prepare
from service.submission.requests import SubmissionRequest
from service.sweeps import store as sweeps
from service.sweeps.expansion import check_stored
from service.sweeps.models import Sweep, SweepPoint
from service.vocabulary import Status

# Tables, not classes: for thousands of rows the ORM takes as long as the database does.
_EXPERIMENTS, _EVENTS, _WAITS = (
    Experiment.metadata.tables[table.__tablename__] for table in (Experiment, Event, Wait)
)


def submitted(
    database: Database,
    settings: Settings,
    user: Caller,
    request: SubmissionRequest,
    *,
    key: IdempotentRequest | None = None,
) -> Accepted:
    """Carry out a request, and return the outcome of each submission. A request that was accepted
    before under its key is not checked again. Raises ApiError."""
    with database.snapshot() as session:
        if key is not None:
            before = idempotency.accepted_before(session, user, key)
            if before is not None:
                return before
        prepared = prepare(session, settings, request.submissions(session, settings, user))
    with database.transaction() as session:
        check_still_valid(session, user)
        if key is not None:
            kept = idempotency.claim(session, user.id, key)
            before = idempotency.accepted_before(session, user, key, kept)
            if before is not None:
                return before
        sweep = request.sweep(session, settings, user, len(prepared.experiments))
        accepted = insert_all(session, prepared, by=user, fair_share=settings.share, sweep=sweep)
        if key is not None:
            made = accepted.kept()
            size = idempotency.size_of(key.key, made)
            if sweep is None and all(one.cached_from for one in accepted.outcomes):
                if not prepared.room.holds(size):
                    made = []  # nothing was stored: the key stays free
            idempotency.keep(session, kept, key, made)
        return accepted


def insert_all(
    session: Session,
    prepared: Prepared,
    *,
    by: Caller,
    fair_share: FairShare,
    sweep: Sweep | None = None,
) -> Accepted:
    """Insert experiments into the queue, with their events, and as points into their sweep. The
    audit log gets a line for each experiment outside a sweep. Raises ApiError if the owner would
    have too many, or if what the experiments refer to has changed."""
    new = [one for one in prepared.experiments if one.cached_from is None]
    rows = [
        {**one.columns, **_of_sweep(sweep, one), "id": uuid7().hex, "owner_id": prepared.owner_id}
        for one in new
    ]
    if rows:
        _check_limits(session, rows, prepared.room, fair_share, sweep)
    _lock_unchanged(session, prepared, sweep)
    if rows:
        session.execute(insert(_EXPERIMENTS), rows)
        status = {"kind": "status", "data": {"status": Status.QUEUED}}
        session.execute(insert(_EVENTS), [{"experiment_id": row["id"], **status} for row in rows])
        notify(session)
    if rows and sweep is None:
        lines = []
        for row in rows:
            details = {"retry_of": row["retry_of"]} if row["retry_of"] else {}
            lines.append(audit.line(by, "experiment.submitted", row["id"], **details))
        session.execute(insert(AuditEntry), lines)
    waits = [
        {"experiment_id": row["id"], "after_id": after_id}
        for row, one in zip(rows, new, strict=True)
        for after_id in one.unfinished
    ]
    if waits:
        session.execute(insert(_WAITS), waits)
    new_ids = (row["id"] for row in rows)
    outcomes = [
        Outcome(one.cached_from or next(new_ids), one.cached_from) for one in prepared.experiments
    ]
    accepted = Accepted(outcomes)
    if successors := {row["retry_of"]: row["id"] for row in rows if row["retry_of"]}:
        sweeps.replace(session, successors)
    elif sweep is not None and outcomes:
        points = [outcome.id for outcome in outcomes]
        accepted = Accepted(outcomes, sweep.id, sweeps.append(session, sweep.id, points))
    for sweep_id in {row["sweep_id"] for row in rows if row["held"] == Held.SWEEP}:
        holds.fill(session, sweep_id)
    return accepted


def _of_sweep(sweep: Sweep | None, one: PreparedExperiment) -> dict[str, Any]:
    """Return the columns of a point of a sweep that differ from those of other experiments. A new
    point copies some from the sweep. Points are held until `holds.fill` releases them, except those
    of a sweep that is known to have no limit, because its row is locked."""
    columns: dict[str, Any] = {"sweep_id": one.columns["sweep_id"]}
    if sweep is not None and one.retry_of is None:
        copied = ("tags", "priority", "visibility", "project_id")
        columns = {name: getattr(sweep, name) for name in copied}
        spec_bytes = one.columns["spec_bytes"] + of_texts(None, sweep.tags, None)
        columns |= {"sweep_id": sweep.id, "spec_bytes": spec_bytes}
    is_limited = sweep is None or sweep.concurrency is not None
    if columns["sweep_id"] is not None and is_limited and one.columns["held"] == Held.NOT:
        columns["held"] = Held.SWEEP
    return columns


def _check_limits(
    session: Session,
    rows: Sequence[dict[str, Any]],
    room: Room,
    fair_share: FairShare,
    sweep: Sweep | None,
) -> None:
    """Lock the owner, and check the limits of the request, the owner and the sweeps. Raises
    ApiError."""
    owner_id, spec_bytes = rows[0]["owner_id"], sum(row["spec_bytes"] for row in rows)
    if sweep is not None and rows[0]["retry_of"] is None:
        check_stored(spec_bytes, len(rows))
    highest = max(row["priority"] for row in rows)
    quota.check_limits(session, owner_id, highest, len(rows), fair_share)
    for project_id in sorted({row["project_id"] for row in rows} - {OWN}):
        some = [row for row in rows if row["project_id"] == project_id]
        quota.check_project(session, owner_id, project_id, len(some), _bytes_of(some))
    room.check(_bytes_of(rows))
    for sweep_id in {row["sweep_id"] for row in rows} - {None}:
        sweeps.check_room(session, sweep_id, len(rows), spec_bytes)


def _bytes_of(rows: Sequence[dict[str, Any]]) -> int:
    """Return how many bytes new experiments keep at most, with what their runs write."""
    return sum(EXPERIMENT_BYTES + row["spec_bytes"] + row["expected_bytes"] for row in rows)


def _lock_unchanged(session: Session, prepared: Prepared, sweep: Sweep | None) -> None:
    """Lock what the experiments refer to until the transaction ends. Raises ApiError (503) if some
    of it is deleted or private now, or if a retried experiment has changed. A predecessor that has
    ended meanwhile is found by the next look (`holds.release_waits`)."""
    retried = {one.retry_of.id: one.retry_of for one in prepared.experiments if one.retry_of}
    cached = {one.cached_from for one in prepared.experiments if one.cached_from}
    is_changed = False
    for table, ids in (
        (Dataset, prepared.uploads),
        (Experiment, {*prepared.predecessors, *cached, *retried}),
    ):
        if ids:
            present = select(table.id).where(among(table.id, ids), readable(table))
            locked = present.order_by(table.id).with_for_update(read=True, key_share=True)
            rows = session.execute(locked, reader(prepared.owner_id)).all()
            is_changed = is_changed or len(rows) < len(ids)
    if retried:
        names = ("id", *BESIDE)
        query = select(*(getattr(Experiment, name) for name in names))
        query = query.where(among(Experiment.id, retried))
        if sweep is not None:
            point = select(SweepPoint).filter_by(sweep_id=sweep.id)
            query = query.where(point.where(SweepPoint.experiment_id == Experiment.id).exists())
        stored = {row.id: tuple(row) for row in session.execute(query)}
        before = {id: tuple(getattr(old, name) for name in names) for id, old in retried.items()}
        is_changed = is_changed or stored != before
    if is_changed:
        detail = "what the request refers to changed while it was checked; nothing was stored"
        raise unavailable("changed_meanwhile", f"{detail}, try again", after_s=1)
