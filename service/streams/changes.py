"""What has changed since the last look, for all who listen at once."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, NamedTuple

from sqlalchemy import BigInteger, Text, cast, func, select
from sqlalchemy.orm import Session

from service.experiments.curves import AnyRow
from service.experiments.models import Event, Experiment, Status
from service.sharing import Visibility
from service.sign_ins import in_force
from service.sweeps.models import Sweep
from service.users import Caller, Scope, callers_of_keys


class Subject(NamedTuple):
    """What one is told of: an experiment, a sweep, or all of a user's."""

    what: Literal["experiment", "sweep", "user"]
    id: str | int


class Changes:
    """What changes from look to look. `horizon` is the event up to which all have come to light:
    on PostgreSQL, where transactions commit in another order than they took their ids in, one of a
    lower id may be under way still. None until that is known.

    An event is written by a transaction that has written before, to the experiment's row. So those
    that hold ids up to the newest that is seen have numbers below one that is taken after that;
    once none of such a number is under way, no lower id can come to light."""

    def __init__(self) -> None:
        self.horizon: int | None = None
        self._awaited: tuple[int, int] | None = None
        """The event that the horizon is to reach, and the transaction that must be the oldest."""
        self._running: dict[str, AnyRow] = {}

    def look(self, session: Session) -> set[Subject]:
        """What those subjects are that something has happened to."""
        before = self.horizon, self._awaited, self._running
        try:
            return _subjects([*self._events(session), *self._runs(session)])
        except Exception:  # no one was told: the next look tells of it
            self.horizon, self._awaited, self._running = before
            raise

    def _events(self, session: Session) -> Iterable[AnyRow]:
        before = self.horizon
        self._advance(session)
        if before is None or before == self.horizon:
            return ()
        query = select(*_IDS).join(Event, Event.experiment_id == Experiment.id).distinct()
        return session.execute(query.where(Event.id > before, Event.id <= self.horizon)).all()

    def _advance(self, session: Session) -> None:
        newest = session.scalar(select(func.max(Event.id))) or 0
        if session.get_bind().dialect.name == "sqlite":  # one writer at a time
            self.horizon = newest
            return
        if self._awaited is None and newest != self.horizon:
            self._awaited = newest, session.execute(_A_TRANSACTION).scalar_one()
        if self._awaited is not None:
            event, transaction = self._awaited
            if session.execute(_OLDEST_TRANSACTION).scalar_one() >= transaction:
                self.horizon, self._awaited = event, None

    def _runs(self, session: Session) -> Iterable[AnyRow]:
        rows = session.execute(
            select(*_IDS, Experiment.attempt, Experiment.last_seq, Experiment.progress_done).where(
                Experiment.status == Status.RUNNING
            )
        )
        before, self._running = self._running, {row.id: row for row in rows}
        return [row for row in self._running.values() if before.get(row.id) != row]


_IDS = (Experiment.id, Experiment.owner_id, Experiment.sweep_id)
_A_TRANSACTION = select(cast(cast(func.pg_current_xact_id(), Text), BigInteger))
_OLDEST_TRANSACTION = select(
    cast(cast(func.pg_snapshot_xmin(func.pg_current_snapshot()), Text), BigInteger)
)


def _subjects(rows: Iterable[AnyRow]) -> set[Subject]:
    found = set()
    for row in rows:
        found |= {Subject("experiment", row.id), Subject("user", row.owner_id)}
        if row.sweep_id is not None:
            found.add(Subject("sweep", row.sweep_id))
    return found


def refused(
    session: Session, listeners: Iterable[tuple[Subject, Caller]]
) -> set[tuple[Subject, Caller]]:
    """Those whose key does not serve as it did any more, whose browser was signed out, or who may
    not read this any more."""
    listeners = set(listeners)
    serving = callers_of_keys(session, {user.key_id for _, user in listeners})
    browsers = {user.sign_in_id for _, user in listeners if user.sign_in_id is not None}
    signed_in = {None, *in_force(session, browsers)}
    there = _there(session, {subject for subject, _ in listeners})
    return {
        (subject, user)
        for subject, user in listeners
        if serving.get(user.key_id) != replace(user, sign_in_id=None)
        or user.sign_in_id not in signed_in
        or Scope.READ not in user.scopes
        or (subject.what != "user" and not _is_open(there.get(subject), user))
    }


def _there(session: Session, subjects: Iterable[Subject]) -> dict[Subject, AnyRow]:
    found: dict[Subject, AnyRow] = {}
    tables: tuple[tuple[Literal["experiment", "sweep"], type[Experiment | Sweep]], ...] = (
        ("experiment", Experiment),
        ("sweep", Sweep),
    )
    for what, table in tables:
        ids = [subject.id for subject in subjects if subject.what == what]
        if ids:
            query = select(table.id, table.owner_id, table.visibility)
            rows = session.execute(query.where(table.id.in_(ids), table.deleted_at.is_(None)))
            found |= {Subject(what, row.id): row for row in rows}
    return found


def _is_open(row: AnyRow | None, user: Caller) -> bool:
    if row is None:
        return False
    return row.owner_id == user.id or row.visibility == Visibility.LAB or user.is_admin
