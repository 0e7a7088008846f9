"""Hold back queued experiments that wait for others to succeed, or for their sweep to have fewer
runs under way.

A held experiment is not in the queue's index until it may run, so that ten thousand of them do not
slow a choice. The transaction that ends an experiment also releases or fails the experiments that
wait for it. Rows are locked in the order of their ids: a waiting experiment is younger than its
predecessors. Every function takes a session and commits nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, bindparam, case, delete, func, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.db.engine import among, now
from service.experiments.models import TERMINAL, WAITING, Experiment, Held, Status, Wait
from service.sweeps.models import Sweep, SweepPoint, Turn

OPEN = (Status.QUEUED, Status.RUNNING)
_LIMITED = select(Sweep.id).where(Sweep.concurrency.is_not(None))
_NEXT_HOLD = case((Experiment.sweep_id.in_(_LIMITED), Held.SWEEP), else_=Held.NOT)
"""Hold of an experiment that waits for no other."""

TURNS_AT_ONCE = 20
"""Maximum number of sweeps that a choice examines. Later choices examine the others."""
_TURNS = select(Turn.sweep_id).order_by(Turn.id).limit(TURNS_AT_ONCE)
_UNDER_WAY = select(func.count()).where(
    Experiment.sweep_id == bindparam("sweep_id"),
    Experiment.status.in_(OPEN),
    Experiment.held == Held.NOT,
)
_HELD = (
    select(Experiment.id)
    .where(
        Experiment.sweep_id == bindparam("sweep_id"),
        Experiment.status == Status.QUEUED,
        Experiment.held == Held.SWEEP,
    )
    .order_by(Experiment.id)
)
_NEXT = _HELD.with_for_update(skip_locked=True)
_ANY = _HELD.limit(1)
"""Built once: idle workers poll ten times a second."""


def wait_for(session: Session, waits: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
    """Make each of these new experiments wait for others. Return the predecessors that have ended
    by now, with their statuses; the caller releases the experiments that wait for them.

    The rows refer to the predecessors, so these cannot end before this transaction does. It must
    end soon: otherwise a predecessor with many submissions might wait for ever."""
    rows = [
        {"experiment_id": one, "after_id": after} for one, others in waits.items()
        for after in others
    ]  # fmt: skip
    if not rows:
        return {}
    session.execute(insert(Wait), rows)
    others = {row["after_id"] for row in rows}
    ended = select(Experiment.id, Experiment.status).where(
        among(Experiment.id, others), Experiment.status.in_(TERMINAL)
    )
    return {row.id: row.status for row in session.execute(ended.order_by(Experiment.id))}


def take_places(session: Session, successors: Mapping[str, str]) -> None:
    """Replace old experiments by new ones (new by old) in their sweeps."""
    place = update(SweepPoint).where(SweepPoint.experiment_id == bindparam("old"))
    taken = place.where(
        select(Experiment.sweep_id).where(Experiment.id == bindparam("new")).scalar_subquery()
        == SweepPoint.sweep_id
    ).values(experiment_id=bindparam("new"))
    rows = [{"old": old, "new": new} for old, new in successors.items()]
    if not rows:
        return
    session.connection().execute(taken, rows)
    take_turns(session, successors.values())


def settle(session: Session, ended: Collection[str], status: str) -> Mapping[str, str]:
    """Release the experiments that wait for experiments that end in this transaction. Blocks until
    uncommitted submissions of further successors are committed (`wait_for`)."""
    mine = select(Experiment.id).where(among(Experiment.id, ended))
    session.execute(mine.order_by(Experiment.id).with_for_update())
    _forget(session, Wait.experiment_id, ended)
    return release(session, ended, status)


def release(session: Session, ended: Collection[str], status: str) -> Mapping[str, str]:
    """Release the experiments that wait only for these ended experiments. If a predecessor did not
    succeed, its successors fail, and so on along the chain. Return the failed experiments, each
    with the ended experiment that caused it. The number of statements does not depend on their
    number: other users' event streams wait for this transaction."""
    if status != Status.SUCCEEDED:
        return _fail(session, ended, status)
    direct = select(Wait.experiment_id).where(among(Wait.after_id, ended))
    if waiting := _locked(session, direct):
        _forget(session, Wait.after_id, ended)
        _release(session, waiting)
    return {}


def _fail(session: Session, ended: Collection[str], status: str) -> Mapping[str, str]:
    ended = {*ended}
    first = select(Wait.experiment_id).where(among(Wait.after_id, ended)).cte(recursive=True)
    chain = first.union(
        select(Wait.experiment_id).join(first, Wait.after_id == first.c.experiment_id)
    )
    waiting: Sequence[str] = ()
    while len(found := _locked(session, select(chain.c.experiment_id))) > len(waiting):
        waiting = found  # while the lock was awaited, a submission may have added to the chain
    if not waiting:
        return {}
    before = _predecessors(session, waiting, {*ended, *waiting})
    _forget(session, Wait.experiment_id, waiting)
    after = defaultdict[str, list[str]](list)
    for one, other in before.items():
        after[other].append(one)
    rows = [
        {
            "which": which,
            "message": f"it comes after {other}, which {_became(other, ended, status)}",
        }
        for other, which in after.items()
    ]
    # Thousands may wait for one experiment, and each for another one.
    connection = session.connection()
    connection.execute(_FAIL, [{**row, "which": row["which"][0]} for row in rows])
    for row in rows:
        if rest := row["which"][1:]:
            connection.execute(_FAIL_ALL, {**row, "which": rest})
    return _firsts(before)


_FAILED = update(Experiment.__table__).values(  # type: ignore[arg-type]
    status=Status.FAILED,
    finished_at=now(),
    failure_kind="invalid",
    failure_message=bindparam("message"),
)
_FAIL = _FAILED.where(Experiment.id == bindparam("which"))
_FAIL_ALL = _FAILED.where(among(Experiment.id, key="which"))


def _forget(session: Session, column: InstrumentedAttribute[str], ids: Collection[str]) -> None:
    """Delete the waits with these ids in a column. They are never objects of the session, which
    would otherwise look for them first."""
    forget = delete(Wait).where(among(column, ids))
    session.execute(forget.execution_options(synchronize_session=False))


def _locked(session: Session, which: Select[Any]) -> Sequence[str]:
    """Lock those of these experiments that have not begun, and return them."""
    query = select(Experiment.id).where(Experiment.id.in_(which), Experiment.status.in_(WAITING))
    return session.scalars(query.order_by(Experiment.id).with_for_update()).all()


def _predecessors(
    session: Session, waiting: Sequence[str], others: Collection[str]
) -> Mapping[str, str]:
    """Return for each of these experiments the oldest of the others that it waits for."""
    # Without a condition on `after_id`, for which SQLite would look up each pair of both lists.
    pairs = select(Wait.experiment_id, Wait.after_id).where(among(Wait.experiment_id, waiting))
    oldest: dict[str, str] = {}
    for one, after in session.execute(pairs.order_by(Wait.experiment_id, Wait.after_id)):
        if after in others:
            oldest.setdefault(one, after)
    return oldest


def _firsts(before: Mapping[str, str]) -> Mapping[str, str]:
    """Return the first experiment of the chain of each of these, given the one before each."""
    firsts: dict[str, str] = {}
    for one in before:
        chain = []
        while one in before and one not in firsts:
            chain.append(one)
            one = before[one]
        firsts |= dict.fromkeys(chain, firsts.get(one, one))
    return firsts


def remove_waits(session: Session, ended: Sequence[str]) -> Sequence[str]:
    """Remove the waits of ended experiments. Return those of them that others wait for."""
    _forget(session, Wait.experiment_id, ended)
    waited_for = select(Wait.after_id).where(among(Wait.after_id, ended)).distinct()
    return session.scalars(waited_for.order_by(Wait.after_id)).all()


def _became(one: str, ended: Collection[str], status: str) -> str:
    return "was cancelled" if one in ended and status == Status.CANCELLED else "failed"


def _release(session: Session, waiting: Sequence[str]) -> None:
    """Release those of these experiments that wait for nothing any more. Their rows are locked: if
    two awaited experiments end at the same time, the second transaction sees the result of the
    first."""
    others = select(Wait.experiment_id).where(Wait.experiment_id == Experiment.id).exists()
    freed = session.execute(
        update(Experiment)
        .where(among(Experiment.id, waiting), ~others)
        .values(held=_NEXT_HOLD)
        .returning(Experiment.sweep_id, Experiment.held)
    ).all()
    note_turns(session, {row.sweep_id for row in freed if row.held == Held.SWEEP})


def take_turns(session: Session, experiment_ids: Collection[str]) -> None:
    """Make experiments wait for their turn if their sweep has a limit: those that are new to it,
    and those that were set aside and are resumed."""
    session.execute(
        update(Experiment)
        .where(
            among(Experiment.id, experiment_ids),
            Experiment.sweep_id.in_(_LIMITED),
            Experiment.held == Held.NOT,
        )
        .values(held=Held.SWEEP)
    )
    limited = select(Experiment.sweep_id).where(
        among(Experiment.id, experiment_ids), Experiment.sweep_id.in_(_LIMITED)
    )
    note_turns(session, session.scalars(limited.distinct()))


def note_turns(session: Session, sweep_ids: Iterable[str | None]) -> None:
    """Let `fill` examine these sweeps."""
    turns = [{"sweep_id": one} for one in sweep_ids]
    if turns:
        session.execute(insert(Turn), turns)


def note_turns_of(session: Session, experiment_ids: Collection[str]) -> None:
    """Let `fill` examine the sweeps of experiments that are no longer active."""
    limited = (
        select(Experiment.sweep_id)
        .distinct()
        .where(among(Experiment.id, experiment_ids), Experiment.sweep_id.in_(_LIMITED))
    )
    session.execute(insert(Turn).from_select(["sweep_id"], limited))


def limit(session: Session, sweep: Sweep) -> None:
    """Hold all experiments of a sweep that have not started: the limit of the sweep has
    changed."""
    mine = update(Experiment).where(Experiment.sweep_id == sweep.id, Experiment.status.in_(WAITING))
    if sweep.concurrency is None:
        session.execute(mine.where(Experiment.held == Held.SWEEP).values(held=Held.NOT))
        return
    queued = (Experiment.status == Status.QUEUED) & (Experiment.held == Held.NOT)
    session.execute(mine.where(queued).values(held=Held.SWEEP))
    note_turns(session, [sweep.id])


def release_sweeps(session: Session) -> None:
    """Release held experiments up to the limits of their sweeps. Only sweeps with changes are
    examined, because held experiments must not slow a choice. Call only while holding the lock of
    claims; otherwise two transactions could release the same slot."""
    noted = {*session.scalars(_TURNS)}
    if not noted:
        return
    # Delete all notes of these sweeps at once, because a sweep may have thousands.
    session.execute(delete(Turn).where(Turn.sweep_id.in_(noted)))
    sweeps = select(Sweep.id, Sweep.concurrency).where(Sweep.id.in_(noted))
    limits = session.execute(sweeps.order_by(Sweep.id)).all()
    note_turns(session, [id for id, limit in limits if not _release_sweep(session, id, limit)])


def _release_sweep(session: Session, sweep_id: str, concurrency: int | None) -> bool:
    """Release held experiments of a sweep up to its limit. Return whether this is complete:
    experiments that another transaction has locked are skipped."""
    which = {"sweep_id": sweep_id}
    room = None
    if concurrency is not None:
        room = concurrency - (session.scalar(_UNDER_WAY, which) or 0)
        if room <= 0:
            return True
    chosen = session.scalars(_NEXT.limit(room), which).all()
    if chosen:
        free = update(Experiment).where(among(Experiment.id, chosen)).values(held=Held.NOT)
        session.execute(free.execution_options(synchronize_session=False))
    return len(chosen) == room or session.scalar(_ANY, which) is None


def reasons(
    session: Session, experiments: Sequence[Experiment], reader_id: int | None
) -> dict[str, str]:
    """Return the reason why each held experiment among these waits, by id, in words for the reader.
    A reader of None is the owner."""
    queued = [one for one in experiments if one.status == Status.QUEUED]
    after = [one for one in queued if one.held == Held.AFTER]
    sweeps = {one.sweep_id for one in queued if one.held == Held.SWEEP}
    others = _waited_for(session, [one.id for one in after]) if after else {}
    limits: dict[str, int | None] = {}
    if sweeps:
        rows = session.execute(select(Sweep.id, Sweep.concurrency).where(Sweep.id.in_(sweeps)))
        limits = {row.id: row.concurrency for row in rows}
    found = {
        one.id: _in_words(others.get(one.id, ()), reader_id in (None, one.owner_id))
        for one in after
    }
    for one in queued:
        if one.held == Held.SWEEP and one.sweep_id is not None:
            most = limits.get(one.sweep_id)
            found[one.id] = f"its sweep has a limit of {most} concurrent runs"
    return found


def _waited_for(
    session: Session, experiment_ids: Sequence[str]
) -> dict[str, list[tuple[str, str]]]:
    """Return the ids and states of the predecessors of each experiment."""
    rows = session.execute(
        select(Wait.experiment_id, Wait.after_id, Experiment.status)
        .join(Experiment, Experiment.id == Wait.after_id)
        .where(among(Wait.experiment_id, experiment_ids))
        .order_by(Wait.after_id)
    )
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for one, after, status in rows:
        found[one].append((after, status))
    return found


NAMED = 3


def _in_words(others: Sequence[tuple[str, str]], is_readers: bool) -> str:
    if not is_readers:
        return "it waits for other experiments to succeed"
    named = ", ".join(f"{one} ({status})" for one, status in others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return f"it waits for {named}{more} to succeed"
