"""Find the changes since the last poll, for all listeners of a process at once."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.accounts.users import Caller, callers_of_keys
from service.db.engine import hold_still
from service.db.visibility import readable, reader
from service.experiments.models import Event, Experiment
from service.records.curves import AnyRow
from service.sweeps.models import Sweep
from service.vocabulary import TERMINAL, Scope, Status

WINDOW_S = 10.0
"""A poll finds an event that was committed at most this long after one with a higher id."""
CHECK_S = 15.0
"""Interval of the check whether ends were missed, because they were committed even later."""


class Subject(NamedTuple):
    """Subject of a listener: an experiment, a sweep, or all experiments of a user."""

    what: Literal["experiment", "sweep", "user"]
    id: str | int


class Look(NamedTuple):
    """Result of a poll."""

    events: dict[Subject, list[int]]
    """New events by subject. The list is empty if only a running experiment has moved on."""
    missed: set[Subject]
    """Subjects with an end that was not among the events."""
    ended: set[Subject]
    """Sweeps whose experiments have all ended."""
    floor: int
    """Later polls find no event up to this id."""


class Changes:
    """Changes from look to look.

    PostgreSQL commits events in another order than that of their ids. So each look reads the ids
    above the newest one that was known WINDOW_S before, without those that were reported. Ends that
    were committed even later are found by counting: the number of ended experiments of a sweep or a
    user must have grown by the ends that were reported. No look waits for a transaction."""

    def __init__(self) -> None:
        self._floor: int | None = None
        """Events up to this one are not read again. None before the first look."""
        self._next_floor = 0
        self._next_floor_at = 0.0
        self._reported: frozenset[int] = frozenset()
        """Events above the floor that were reported."""
        self._running: dict[str, AnyRow] = {}
        self._ended: dict[Subject, int] = {}
        """Number of ended experiments of sweeps and users with listeners."""
        self._check_at = 0.0

    def look(
        self, session: Session, listened: Collection[Subject] = (), new: Collection[Subject] = ()
    ) -> Look:
        """Return what has happened. `new` are the subjects with a listener since the last look."""
        before = dict(vars(self))
        try:
            hold_still(session)
            events: dict[Subject, list[int]] = {}
            ended: dict[str, AnyRow] = {}
            for row in self._events(session):
                for subject in _subjects(row):
                    events.setdefault(subject, []).append(row.event_id)
                if row.kind == "status" and row.status in TERMINAL:
                    ended[row.id] = row
            ends = Counter(subject for row in ended.values() for subject in _subjects(row))
            missed, sweeps = self._check(session, listened, {*new, *events}, ends)
            for row in self._runs(session):
                for subject in _subjects(row):
                    events.setdefault(subject, [])
            return Look(events, missed, sweeps, self._floor or 0)
        except Exception:  # nobody was woken: the next look reports it
            vars(self).update(before)
            raise

    def _events(self, session: Session) -> list[AnyRow]:
        if self._floor is None:
            self._floor = self._next_floor = session.scalar(select(func.max(Event.id))) or 0
        ids = frozenset(session.scalars(select(Event.id).where(Event.id > self._floor)))
        new, self._reported = ids - self._reported, ids
        if time.monotonic() >= self._next_floor_at:
            self._floor, self._next_floor = self._next_floor, max(ids, default=self._next_floor)
            self._next_floor_at = time.monotonic() + WINDOW_S
        if not new:
            return []
        query = select(Event.id.label("event_id"), Event.kind, Experiment.status, *_IDS)
        query = query.join(Experiment, Experiment.id == Event.experiment_id)
        query = query.where(Event.id.between(min(new), max(new))).order_by(Event.id)
        return [row for row in session.execute(query) if row.event_id in new]

    def _check(
        self,
        session: Session,
        listened: Collection[Subject],
        touched: set[Subject],
        ends: Counter[Subject],
    ) -> tuple[set[Subject], set[Subject]]:
        """Return the subjects with ends that may have been missed, and the sweeps that have
        ended."""
        several = {subject for subject in listened if subject.what != "experiment"}
        asked = several - self._ended.keys()
        asked |= {subject for subject in several & touched if subject.what == "sweep"}
        missed = set()
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + CHECK_S
            asked = several
            ids = [subject.id for subject in listened if subject.what == "experiment"]
            query = select(Experiment.id).where(Experiment.id.in_(ids))
            query = query.where(Experiment.status.in_(TERMINAL))
            missed = {Subject("experiment", id) for id in session.scalars(query)}
        ended, unfinished = _counts(session, asked)
        expected = {one: self._ended[one] + ends[one] for one in several & self._ended.keys()}
        self._ended = expected | {subject: ended[subject] for subject in asked}
        missed |= {one for one in expected if expected[one] != self._ended[one]}
        return missed, {one for one in asked - unfinished if one.what == "sweep"}

    def _runs(self, session: Session) -> list[AnyRow]:
        rows = session.execute(
            select(*_IDS, Experiment.attempt, Experiment.last_seq, Experiment.progress_done).where(
                Experiment.status == Status.RUNNING
            )
        )
        before, self._running = self._running, {row.id: row for row in rows}
        return [row for row in self._running.values() if before.get(row.id) != row]


_IDS = (Experiment.id, Experiment.owner_id, Experiment.sweep_id)


def _counts(session: Session, subjects: Iterable[Subject]) -> tuple[Counter[Subject], set[Subject]]:
    """Return the number of ended experiments of sweeps and users, and which of them have unfinished
    ones. The query names all statuses, so that an index that begins with the status serves it."""
    ended, unfinished = Counter[Subject](), set()
    tables: tuple[tuple[Literal["sweep", "user"], Any], ...] = (
        ("sweep", Experiment.sweep_id),
        ("user", Experiment.owner_id),
    )
    for what, column in tables:
        ids = [subject.id for subject in subjects if subject.what == what]
        if not ids:
            continue
        query = select(column, Experiment.status, func.count()).group_by(column, Experiment.status)
        query = query.where(column.in_(ids), Experiment.status.in_([*Status]))
        for id, status, count in session.execute(query):
            if status in TERMINAL:
                ended[Subject(what, id)] += count
            else:
                unfinished.add(Subject(what, id))
    return ended, unfinished


def _subjects(row: AnyRow) -> Iterator[Subject]:
    yield Subject("experiment", row.id)
    yield Subject("user", row.owner_id)
    if row.sweep_id is not None:
        yield Subject("sweep", row.sweep_id)


def refused(
    session: Session, listeners: Iterable[tuple[Subject, Caller]]
) -> set[tuple[Subject, Caller]]:
    """Return the listeners whose key was revoked or changed, or who may no longer read the
    subject."""
    listeners = set(listeners)
    serving = callers_of_keys(session, {user.key_id for _, user in listeners})
    may_read = _may_read(session, listeners)
    return {
        (subject, user)
        for subject, user in listeners
        if serving.get(user.key_id) != replace(user, by_cookie=False)
        or Scope.READ not in user.scopes
        or (subject.what != "user" and (subject, user) not in may_read)
    }


def _may_read(
    session: Session, listeners: Collection[tuple[Subject, Caller]]
) -> set[tuple[Subject, Caller]]:
    """Return the listeners to an experiment or a sweep that they may read."""
    may_read: set[tuple[Subject, Caller]] = set()
    tables: tuple[tuple[Literal["experiment", "sweep"], type[Experiment | Sweep]], ...] = (
        ("experiment", Experiment),
        ("sweep", Sweep),
    )
    subjects: dict[Caller, set[Subject]] = {}
    for subject, user in listeners:
        subjects.setdefault(user, set()).add(subject)
    for user, (what, table) in product(subjects, tables):
        ids = [subject.id for subject in subjects[user] if subject.what == what]
        if ids:
            query = select(table.id).where(table.id.in_(ids), readable(table))
            found = session.scalars(query, reader(user.id, user.is_admin))
            may_read |= {(Subject(what, id), user) for id in found}
    return may_read
