"""Find the changes since the last poll, for all listeners of a process at once."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, NamedTuple

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from service.accounts.models import Scope
from service.accounts.sign_ins import in_force
from service.accounts.users import Caller, callers_of_keys
from service.db.visibility import Visibility
from service.experiments.models import Event, Experiment, Status
from service.records.curves import AnyRow
from service.sweeps.models import Sweep

WRITERS_LOCK = 7_301_524
"""PostgreSQL advisory lock that a trigger on `events` takes, shared, for each writing transaction
(migration 0029). The trigger takes it before an event gets its id; the commit releases it."""


class Subject(NamedTuple):
    """Subject of a listener: an experiment, a sweep, or all experiments of a user."""

    what: Literal["experiment", "sweep", "user"]
    id: str | int


class Changes:
    """Changes from look to look, and the horizon: all events up to it are visible.

    PostgreSQL commits events in another order than they got their ids. A transaction that holds an
    id below the newest visible one also holds the writers' lock. So the horizon reaches that newest
    event once the transactions that held the lock at that moment have ended. Transactions that
    write no event, and those of other databases of the server, do not hold the lock.

    Listeners of one experiment need no horizon: each visible event is reported to them at once."""

    def __init__(self) -> None:
        self.horizon: int | None = None
        """None until the first one is known."""
        self._target: int | None = None
        """The event that the horizon is about to reach."""
        self._writers: frozenset[str] = frozenset()
        """The transactions that must end before that."""
        self._since: int | None = None
        """Events up to this one were reported, or are older than the first look."""
        self._reported: frozenset[int] = frozenset()
        """Events beyond that which were reported when they became visible."""
        self._running: dict[str, AnyRow] = {}

    def look(self, session: Session) -> set[Subject]:
        """Return the subjects that something has happened to."""
        before = dict(vars(self))
        try:
            return _subjects([*self._events(session), *self._runs(session)])
        except Exception:  # nobody was woken: the next look reports it
            vars(self).update(before)
            raise

    def _events(self, session: Session) -> list[AnyRow]:
        """Return events twice: when they become visible, and when the horizon passes them."""
        newest = session.scalar(select(func.max(Event.id))) or 0
        self._advance(session, newest)
        if self._since is None:
            self._since = newest
            return []
        query = select(Event.id.label("event_id"), *_IDS)
        query = query.join(Experiment, Experiment.id == Event.experiment_id)
        rows = session.execute(query.where(Event.id > self._since)).all()
        horizon = self.horizon or 0
        is_new = {row.event_id for row in rows} - self._reported
        found = [row for row in rows if row.event_id <= horizon or row.event_id in is_new]
        self._since = max(self._since, horizon)
        self._reported = frozenset(row.event_id for row in rows if row.event_id > self._since)
        return found

    def _advance(self, session: Session, newest: int) -> None:
        if session.get_bind().dialect.name == "sqlite":  # one writer at a time
            self.horizon = newest
            return
        if self._target is None and newest == self.horizon:
            return
        writers = frozenset(session.scalars(_WRITERS))  # after `newest` was read
        if self._target is None or not writers:
            self._target, self._writers = newest, writers
        self._writers &= writers
        if not self._writers:
            self.horizon, self._target = self._target, None

    def _runs(self, session: Session) -> list[AnyRow]:
        rows = session.execute(
            select(*_IDS, Experiment.attempt, Experiment.last_seq, Experiment.progress_done).where(
                Experiment.status == Status.RUNNING
            )
        )
        before, self._running = self._running, {row.id: row for row in rows}
        return [row for row in self._running.values() if before.get(row.id) != row]


_IDS = (Experiment.id, Experiment.owner_id, Experiment.sweep_id)
_WRITERS = text(f"""
    SELECT virtualtransaction FROM pg_locks
    WHERE locktype = 'advisory' AND classid = 0 AND objid = {WRITERS_LOCK} AND objsubid = 1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
""")


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
    """Return the listeners whose key was revoked or changed, whose browser was signed out, or who
    may no longer read the subject."""
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
