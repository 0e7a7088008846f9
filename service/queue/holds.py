"""Hold back queued experiments that wait for others to succeed, or for their sweep to have fewer
runs under way.

A held experiment is not in the queue's index, so that ten thousand of them do not slow a claim. A
background process looks at what is stored and releases them, so no other transaction has to know
who waits for what. Rows that another transaction has locked are left for the next look, because
that transaction may hang. Points of a sweep are released only in a transaction that has locked the
row of the sweep, so that two never release the same place. Every function takes a session and
commits nothing.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import (
    Select,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.orm import Session, aliased

from service.db.engine import among, now
from service.db.notices import notify
from service.experiments.models import Event, Experiment, Held, Wait
from service.sweeps.models import Sweep
from service.vocabulary import TERMINAL, UNFINISHED, Status
from service.webhooks import store as webhooks

OPEN = (Status.QUEUED, Status.RUNNING)
_UNDER_WAY = (Experiment.status.in_(OPEN), Experiment.held == Held.NOT)
_HELD = (
    Experiment.status == literal_column(f"'{Status.QUEUED}'"),
    Experiment.held == literal_column(f"'{Held.SWEEP}'"),
)
"""Condition of the index `ix_experiments_held`. With parameters it would not be used."""


def awaits_what_has_ended(session: Session) -> bool:
    """Return whether an experiment waits for one that has ended."""
    return session.execute(_ended_predecessors().limit(1)).first() is not None


def _ended_predecessors() -> Select[str, str]:
    """Select the id and the status of each experiment that has ended and is waited for."""
    awaited = select(Wait.after_id).distinct().subquery()
    # A subquery, because it is always a look-up by id. A join may read all experiments.
    status = select(Experiment.status).where(Experiment.id == awaited.c.after_id).scalar_subquery()
    return select(awaited.c.after_id, status.label("status")).where(status.in_(TERMINAL))


def release_waits(session: Session) -> None:
    """Release the experiments whose predecessors have all succeeded. If a predecessor has failed or
    was cancelled, its successors fail, and so on along the chain. The number of statements does not
    depend on the number of experiments."""
    statuses = {row.after_id: row.status for row in session.execute(_ended_predecessors())}
    if succeeded := [id for id in statuses if statuses[id] == Status.SUCCEEDED]:
        _release_after(session, succeeded)
    if failed := {id: statuses[id] for id in statuses if statuses[id] != Status.SUCCEEDED}:
        _fail_after(session, failed)


def _release_after(session: Session, succeeded: Sequence[str]) -> None:
    successors = _locked(session, select(Wait.experiment_id).where(among(Wait.after_id, succeeded)))
    status = select(Experiment.status).where(Experiment.id == Wait.after_id).scalar_subquery()
    over = delete(Wait).where(among(Wait.experiment_id, successors), status == Status.SUCCEEDED)
    session.execute(over.execution_options(synchronize_session=False))
    unfinished = [id for id in successors if successors[id] not in TERMINAL]
    still_waits = exists().where(Wait.experiment_id == Experiment.id)
    release = update(Experiment).where(among(Experiment.id, unfinished), ~still_waits)
    next_hold = case((Experiment.sweep_id.is_not(None), Held.SWEEP), else_=Held.NOT)
    session.execute(release.values(held=next_hold))


def _fail_after(session: Session, ended: Mapping[str, str]) -> None:
    first = select(Wait.experiment_id).where(among(Wait.after_id, ended)).cte(recursive=True)
    next_one = select(Wait.experiment_id).join(first, Wait.after_id == first.c.experiment_id)
    chain = first.union(next_one)
    successors = _locked(session, select(chain.c.experiment_id))
    causes: dict[str, str] = {}
    messages = defaultdict[str, list[str]](list)
    pairs = select(Wait.experiment_id, Wait.after_id).where(among(Wait.experiment_id, successors))
    # Predecessors come first, because ids increase with time. If the clocks of two machines differ,
    # the next look lets the rest of the chain fail.
    for id, after_id in session.execute(pairs.order_by(Wait.experiment_id, Wait.after_id)):
        if id in causes or successors[id] in TERMINAL:
            continue
        if after_id in ended or after_id in causes:
            causes[id] = causes.get(after_id, after_id)
            became = "was cancelled" if ended.get(after_id) == Status.CANCELLED else "failed"
            messages[f"it comes after {after_id}, which {became}"].append(id)
    over = [id for id in successors if id in causes or successors[id] in TERMINAL]
    forget = delete(Wait).where(among(Wait.experiment_id, over))
    session.execute(forget.execution_options(synchronize_session=False))
    if not causes:
        return
    session.connection().execute(
        update(Experiment.__table__)  # type: ignore[arg-type]
        .where(among(Experiment.id, key="ids"))
        .values(
            status=Status.FAILED,
            finished_at=now(),
            failure_kind="invalid",
            failure_message=bindparam("message"),
        ),
        [{"ids": ids, "message": message} for message, ids in messages.items()],
    )
    events = [
        {"experiment_id": id, "kind": "status", "data": {"status": Status.FAILED, "after": cause}}
        for id, cause in causes.items()
    ]
    session.execute(insert(Event), events)
    notify(session)
    webhooks.announce(session, [*causes], Status.FAILED)


def _locked(session: Session, ids: Select[str]) -> Mapping[str, str]:
    """Lock experiments and return their statuses by id."""
    rows = select(Experiment.id, Experiment.status).where(Experiment.id.in_(ids))
    locked = rows.order_by(Experiment.id).with_for_update(key_share=True, skip_locked=True)
    return {row.id: row.status for row in session.execute(locked)}


def sweeps_with_room(session: Session) -> Sequence[str]:
    """Return the sweeps with held points that have fewer runs under way than their limit."""
    count = select(func.count()).where(Experiment.sweep_id == Sweep.id, *_UNDER_WAY)
    has_room = Sweep.concurrency > count.correlate(Sweep).scalar_subquery()
    sweeps = select(Sweep.id).where(
        Sweep.id.in_(select(Experiment.sweep_id).where(*_HELD)),
        Sweep.concurrency.is_(None) | has_room,
    )
    return session.scalars(sweeps.order_by(Sweep.id)).all()


def fill_sweeps(session: Session) -> None:
    """Release held points of all sweeps that have fewer runs under way than their limit."""
    for sweep_id in sweeps_with_room(session):
        fill(session, sweep_id)


def fill(session: Session, sweep_id: str) -> None:
    """Release held points of a sweep up to its limit, the oldest first."""
    limit = select(Sweep.concurrency).where(Sweep.id == sweep_id)
    locked = limit.with_for_update(key_share=True, skip_locked=True)
    sweep = session.execute(locked).one_or_none()
    if sweep is None:
        return
    room = None
    if sweep.concurrency is not None:  # a statement after the lock sees what others have released
        count = select(func.count()).where(Experiment.sweep_id == sweep_id, *_UNDER_WAY)
        room = max(0, sweep.concurrency - session.scalars(count).one())
    held = select(Experiment.id).where(Experiment.sweep_id == sweep_id, *_HELD)
    first = held.order_by(Experiment.id).limit(room)
    ids = session.scalars(first.with_for_update(key_share=True, skip_locked=True)).all()
    if ids:
        release = update(Experiment).where(among(Experiment.id, ids))
        session.execute(release.values(held=Held.NOT))
        notify(session)


def fill_sweep_of(session: Session, experiment_id: str) -> None:
    """Release held points of an experiment's sweep at once, without waiting for the next look."""
    experiment = aliased(Experiment)
    sweep_id = session.scalar(
        select(experiment.sweep_id).where(
            experiment.id == experiment_id,
            exists().where(Experiment.sweep_id == experiment.sweep_id, *_HELD),
        )
    )
    if sweep_id is not None:
        fill(session, sweep_id)


def hold_resumed(session: Session, experiment_id: str) -> None:
    """Hold an experiment that was resumed, if it is a point of a sweep."""
    is_point = Experiment.sweep_id.is_not(None) & (Experiment.held == Held.NOT)
    hold = update(Experiment).where(Experiment.id == experiment_id, is_point)
    session.execute(hold.values(held=Held.SWEEP))
    fill_sweep_of(session, experiment_id)


def change_limit(session: Session, sweep: Sweep) -> None:
    """Apply the new limit of a sweep, whose row is locked: hold its queued points, and release as
    many as it allows."""
    if sweep.concurrency is not None:
        queued = Experiment.status == Status.QUEUED, Experiment.held == Held.NOT
        hold = update(Experiment).where(Experiment.sweep_id == sweep.id, *queued)
        session.execute(hold.values(held=Held.SWEEP))
    fill(session, sweep.id)


NAMED = 3
"""Maximum number of predecessors that a reason names."""


def reasons(
    session: Session, experiments: Sequence[Experiment], reader_id: int | None
) -> dict[str, str]:
    """Return the reason why each held experiment among these waits, by id, in words for the reader.
    A reader of None is the owner."""
    held = [one for one in experiments if one.status == Status.QUEUED and one.held != Held.NOT]
    predecessors = defaultdict[str, list[str]](list)
    if waiting := [one.id for one in held if one.held == Held.AFTER]:
        rows = session.execute(
            select(Wait.experiment_id, Wait.after_id, Experiment.status)
            .join(Experiment, Experiment.id == Wait.after_id)
            .where(among(Wait.experiment_id, waiting), Experiment.status.in_(UNFINISHED))
            .order_by(Wait.after_id)
        )
        for id, after_id, status in rows:
            predecessors[id].append(f"{after_id} ({status})")
    limits: dict[str | None, int | None] = {}
    if sweep_ids := {one.sweep_id for one in held if one.held == Held.SWEEP}:
        sweeps = select(Sweep.id, Sweep.concurrency).where(Sweep.id.in_(sweep_ids))
        limits = {row.id: row.concurrency for row in session.execute(sweeps)}
    texts = {}
    for one in held:
        names = predecessors[one.id]
        if one.held == Held.SWEEP:
            if (limit := limits.get(one.sweep_id)) is not None:  # else the next look releases it
                texts[one.id] = f"its sweep has a limit of {limit} concurrent runs"
        elif not names:
            texts[one.id] = "the experiments before it have ended: it starts or fails in seconds"
        elif reader_id not in (None, one.owner_id):
            texts[one.id] = "it waits for other experiments to succeed"
        else:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            texts[one.id] = f"it waits for {', '.join(names[:NAMED])}{more} to succeed"
    return texts
