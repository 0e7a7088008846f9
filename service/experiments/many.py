"""Submit many experiments at once: all or none, in a few statements."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import insert, select
from sqlalchemy.orm import Session
from uuid6 import uuid7

from service import audit, quota
from service.audit import AuditEntry
from service.database import insert_new
from service.experiments import states, store
from service.experiments.models import Event, Experiment, Status
from service.fair_share import FairShare
from service.sweeps.models import KeptRequest
from service.users import Caller

# Tables, not classes: for thousands of rows the ORM takes as long as the database does.
_EXPERIMENTS, _EVENTS = (
    Experiment.metadata.tables[one.__tablename__] for one in (Experiment, Event)
)


class New(NamedTuple):
    """The columns of a new experiment, and the experiments it waits for."""

    columns: Mapping[str, Any]
    unfinished: Sequence[str] = ()


def submit(
    session: Session,
    owner_id: int,
    wanted: Sequence[New | str],
    *,
    by: Caller,
    sharing: FairShare,
    sweep_id: str | None = None,
) -> list[str]:
    """Store new experiments in the queue, as points of a sweep or not, and return the ids of all in
    order. An entry that is an id stands for an existing experiment. The audit log gets a line for
    each experiment outside a sweep. Raises Refused if the user would have too many."""
    new = [one for one in wanted if isinstance(one, New)]
    made = iter(_submit(session, owner_id, new, by, sharing, sweep_id) if new else ())
    return [next(made) if isinstance(one, New) else one for one in wanted]


def _submit(
    session: Session,
    owner_id: int,
    new: Sequence[New],
    by: Caller,
    sharing: FairShare,
    sweep_id: str | None,
) -> list[str]:
    highest = max(one.columns["priority"] for one in new)
    spec_bytes = sum(one.columns["spec_bytes"] for one in new)
    needed = spec_bytes + sum(one.columns["expected_bytes"] for one in new)
    store.check_limits(session, owner_id, highest, len(new), sharing, needed)
    quota.note(session, owner_id, spec_bytes)
    ids = [uuid7().hex for _ in new]
    common = {"owner_id": owner_id, "sweep_id": sweep_id}
    rows = [
        {**one.columns, "id": id, "device": one.columns["spec"]["compute"]["device"], **common}
        for id, one in zip(ids, new, strict=True)
    ]
    session.execute(insert(_EXPERIMENTS), rows)
    data = {"status": Status.QUEUED}
    events = [{"experiment_id": id, "kind": "status", "data": data} for id in ids]
    session.execute(insert(_EVENTS), events)
    if sweep_id is None:
        lines = [audit.line(by, "experiment.submitted", id) for id in ids]
        session.execute(insert(AuditEntry), lines)
    states.wait_for(
        session, {id: one.unfinished for id, one in zip(ids, new, strict=True) if one.unfinished}
    )
    return ids


def made_before(session: Session, owner_id: int, key: str | None, sha256: str) -> list[str]:
    """Return what the same request created under its key; nothing if the request is new."""
    kept = session.get(KeptRequest, (owner_id, key)) if key is not None else None
    return kept.made if kept is not None and kept.sha256 == sha256 else []


def kept_request(
    session: Session, owner_id: int, key: str | None, sha256: str
) -> KeptRequest | None:
    """Return the stored request of an idempotency key, or None without a key. `made` is empty for a
    new key; the caller sets it by `keep`. A concurrent request with the same key waits here. Raises
    KeyReused."""
    if key is None:
        return None
    which = {"owner_id": owner_id, "idempotency_key": key}
    insert_new(session, KeptRequest, [{**which, "sha256": sha256, "made": []}])
    kept = session.scalars(select(KeptRequest).filter_by(**which)).one()
    single = select(Experiment.id).filter_by(**which)
    if kept.sha256 != sha256 or session.scalar(single) is not None:
        raise store.KeyReused
    return kept


def keep(session: Session, kept: KeptRequest, made: list[Any]) -> None:
    """Store what a request made, which counts as bytes of its user."""
    kept.made = made
    quota.note(session, kept.owner_id, len(json.dumps(made)))
