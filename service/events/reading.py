"""Read the events of a listener's subject: of one experiment in order, with its points, or of
several experiments, first their present state, then the changes that the poller reports.

The events of one experiment are written while its row is locked, so they are committed in the order
of their ids, and the last id is a position to continue from. Events of several experiments have no
such position: one may be committed after another one with a higher id.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.accounts.permissions import find
from service.accounts.users import Caller
from service.db.engine import hold_still, moment, now
from service.db.visibility import readable, reader
from service.events.changes import Subject
from service.events.poller import Listener
from service.experiments.models import Event, Experiment
from service.queue.states import is_terminal
from service.records.curves import AnyRow, TooFewPoints, read_curves, series_out
from service.schemas import ResponseModel
from service.sweeps.models import Sweep
from service.vocabulary import TERMINAL, Status

MAX_POINTS = 10_000
"""Maximum number of points in one event. More are downsampled."""
PAGE = 500
"""Number of events that a stream reads at once."""
RECENT_S = 3600.0
"""Time for which the state of a user's experiments contains those that have ended: a client that
reconnects earlier misses no end."""
MAX_RECENT = 1000
"""Maximum number of these. The most recent ends are preferred."""


class Kind(StrEnum):
    """Type of an event."""

    STATUS = "status"
    LOG = "log"
    PROGRESS = "progress"
    POINTS = "points"


class EventOut(ResponseModel):
    """An event."""

    id: str | None
    """Pass it as `after` or Last-Event-ID to get later events. null in events of several
    experiments, which have no order."""
    kind: Kind
    """Kind of the event: `status`, `log`, `progress` or `points`."""
    experiment_id: str
    """Id of the experiment."""
    at: datetime | None
    """Time of the event. null for progress and points, which report the current state, and for the
    status at the beginning of a stream unless the experiment has ended."""
    data: dict[str, Any]
    """Content, by the kind."""


class EventCursor(NamedTuple):
    """A position in the events of an experiment: the last event, the progress and the last record
    of points that were sent."""

    event: int = 0
    done: int = 0
    seq: int = 0

    def __str__(self) -> str:
        return "-".join(map(str, self)) if self.done or self.seq else str(self.event)


class Reading(NamedTuple):
    """Some events."""

    events: list[EventOut]
    cursor: EventCursor | None = None
    """Position after them; None for several experiments."""
    more: bool = False
    """True if more can be read at once."""
    ended: bool = False
    """True if no more events will come."""


class OneExperiment:
    """An experiment, with its points, after a position (None: from now on)."""

    is_several = False

    def __init__(
        self, user: Caller, experiment_id: str, kinds: Collection[Kind], after: EventCursor | None
    ):
        self.subject = Subject("experiment", experiment_id)
        self.cursor = after
        self._user = user
        self._id = experiment_id
        self._kinds = kinds

    def check(self, session: Session) -> None:
        """Raises ApiError if the caller may not read it."""
        find(session, self._user, Experiment, self._id)

    def next(self, listener: Listener, floor: int) -> Callable[[Session], Reading]:
        """Return a function that reads what a listener has not received yet."""
        return partial(self.page, limit=PAGE)

    def page(self, session: Session, limit: int) -> Reading:
        """Return about `limit` events. Points precede the event that ends the experiment. Raises
        ApiError like `check`."""
        hold_still(session)
        experiment = find(session, self._user, Experiment, self._id)
        of_it = Event.experiment_id == experiment.id
        after = self.cursor
        if after is None:
            newest = session.scalar(select(func.max(Event.id)).where(of_it)) or 0
            after = EventCursor(newest, experiment.progress_done or 0, experiment.last_seq)
        query = select(Event).where(of_it, Event.id > after.event, Event.kind.in_(self._kinds))
        stored = [*session.scalars(query.order_by(Event.id).limit(limit))]
        more = len(stored) == limit
        is_last = bool(stored) and is_terminal(stored[-1].data.get("status", ""))
        ending = [stored.pop()] if is_last else []
        events, cursor = _numbered(stored, after, experiment)
        if ending or not more:
            if Kind.PROGRESS in self._kinds and _moved(experiment, cursor):
                cursor = cursor._replace(done=experiment.progress_done or 0)
                data = _progress(experiment)
                events.append(_report(Kind.PROGRESS, experiment.id, data, cursor))
            if Kind.POINTS in self._kinds and experiment.last_seq > cursor.seq:
                points = _points(session, experiment, cursor.seq)
                cursor = cursor._replace(seq=experiment.last_seq)
                if points is not None:
                    events.append(_report(Kind.POINTS, experiment.id, points, cursor))
        last, cursor = _numbered(ending, cursor, experiment)
        more = more and not ending
        return Reading(events + last, cursor, more, not more and is_terminal(experiment.status))


class SeveralExperiments:
    """The experiments of a sweep, or all of the user's own, with notices about running ones."""

    is_several = True

    def __init__(self, user: Caller, sweep_id: str | None, kinds: Collection[Kind]):
        self.subject = Subject("sweep", sweep_id) if sweep_id else Subject("user", user.id)
        self.cursor: EventCursor | None = None
        self._user = user
        self._sweep_id = sweep_id
        self._kinds = kinds
        self._included: frozenset[int] = frozenset()
        """Events that the state includes and that the poller may still report."""
        self._noticed: dict[str, EventCursor] = {}

    def check(self, session: Session) -> None:
        """Raises ApiError if the caller may not read the sweep."""
        self._condition(session)

    def next(self, listener: Listener, floor: int) -> Callable[[Session], Reading]:
        """Return a function that reads what a listener has not received yet. The poller will report
        no event whose id is not above `floor`."""
        if listener.needs_state:
            listener.needs_state, listener.pending = False, []
            return partial(self.state, floor=floor)
        ids, listener.pending = listener.pending[:PAGE], listener.pending[PAGE:]
        return partial(self._changes, ids=[id for id in ids if id not in self._included])

    def state(self, session: Session, floor: int | None = None) -> Reading:
        """Return the status of each experiment of the sweep, or of the user's experiments that run
        or have ended recently, then notices about running ones. Raises ApiError like `check`."""
        hold_still(session)
        condition = self._condition(session)
        if floor is not None:
            self._included = frozenset(session.scalars(select(Event.id).where(Event.id > floor)))
        names = ("id", "status", "finished_at", "failure_kind", "failure_message")
        query = select(*(getattr(Experiment, name) for name in names)).where(condition)
        if self._sweep_id is not None:
            rows = session.execute(query.order_by(Experiment.id)).all()
        else:
            is_recent = Experiment.finished_at > now() - RECENT_S
            recent = query.where(is_recent, Experiment.status.in_(TERMINAL))
            recent = recent.order_by(Experiment.finished_at.desc()).limit(MAX_RECENT)
            running = query.where(Experiment.status == Status.RUNNING).order_by(Experiment.id)
            rows = [*reversed(session.execute(recent).all()), *session.execute(running)]
        events = [
            _report(Kind.STATUS, row.id, _status(row.status, row), at=row.finished_at)
            for row in rows
            if Kind.STATUS in self._kinds
        ]
        self._noticed = {}
        has_ended = self._sweep_id is not None and all(is_terminal(row.status) for row in rows)
        return Reading([*events, *self._notices(session, condition)], ended=has_ended)

    def _changes(self, session: Session, ids: Sequence[int]) -> Reading:
        hold_still(session)
        condition = self._condition(session)
        query = select(Event, Experiment.failure_kind, Experiment.failure_message)
        query = query.join(Experiment, Experiment.id == Event.experiment_id)
        query = query.where(condition, Event.id.in_(ids), Event.kind.in_(self._kinds))
        rows = session.execute(query.order_by(Event.id)) if ids else ()
        events = [_event(row.Event, None, row) for row in rows]
        return Reading([*events, *self._notices(session, condition)])

    def _condition(self, session: Session) -> ColumnElement[bool]:
        if self._sweep_id is None:
            return Experiment.deleted_at.is_(None) & (Experiment.owner_id == self._user.id)
        find(session, self._user, Sweep, self._sweep_id)
        may_read = readable(Experiment).params(reader(self._user.id, self._user.is_admin))
        return may_read & (Experiment.sweep_id == self._sweep_id)

    def _notices(self, session: Session, condition: ColumnElement[bool]) -> list[EventOut]:
        """Return notices about running experiments that have moved since the last ones."""
        if not {Kind.PROGRESS, Kind.POINTS} & {*self._kinds}:
            return []
        names = ("id", "last_seq", "progress_done", "progress_total", "progress_unit")
        query = select(*(getattr(Experiment, name) for name in names))
        query = query.where(condition, Experiment.status == Status.RUNNING)
        notices: list[EventOut] = []
        noticed, self._noticed = self._noticed, {}
        for row in session.execute(query.order_by(Experiment.id)):
            before = noticed.get(row.id, EventCursor())
            self._noticed[row.id] = EventCursor(0, row.progress_done or 0, row.last_seq)
            if Kind.PROGRESS in self._kinds and _moved(row, before):
                notices.append(_report(Kind.PROGRESS, row.id, _progress(row)))
            if Kind.POINTS in self._kinds and row.last_seq > before.seq:
                data = {"last_seq": row.last_seq, "series": None}
                notices.append(_report(Kind.POINTS, row.id, data))
        return notices


Source = OneExperiment | SeveralExperiments
"""Source of a subject's events."""


def _numbered(
    stored: Sequence[Event], cursor: EventCursor, experiment: Experiment
) -> tuple[list[EventOut], EventCursor]:
    events = []
    for event in stored:
        cursor = cursor._replace(event=event.id)
        events.append(_event(event, cursor, experiment))
    return events, cursor


def _event(event: Event, cursor: EventCursor | None, row: Experiment | AnyRow) -> EventOut:
    data = dict(event.data)
    if event.kind == Kind.STATUS:
        data |= _status(data["status"], row)
    else:
        data["seq"] = event.seq
    return _report(Kind(event.kind), event.experiment_id, data, cursor, event.at)


def _status(status: str, row: Experiment | AnyRow) -> dict[str, Any]:
    data: dict[str, Any] = {"status": status, "terminal": is_terminal(status)}
    if status == Status.FAILED:
        data["failure"] = {"kind": row.failure_kind, "message": row.failure_message}
    return data


def _report(
    kind: Kind,
    experiment_id: str,
    data: dict[str, Any],
    cursor: EventCursor | None = None,
    at: float | None = None,
) -> EventOut:
    event_id = None if cursor is None else str(cursor)
    return EventOut.model_construct(
        id=event_id, kind=kind, experiment_id=experiment_id, at=moment(at), data=data
    )


def _moved(run: Experiment | AnyRow, before: EventCursor) -> bool:
    return run.progress_total is not None and (run.progress_done or 0) != before.done


def _progress(run: Experiment | AnyRow) -> dict[str, Any]:
    return {
        "done": run.progress_done or 0,
        "total": run.progress_total,
        "unit": run.progress_unit,
    }


def _points(session: Session, experiment: Experiment, after: int) -> dict[str, Any] | None:
    """Return the points recorded since a position. They are omitted if there are too many
    series."""
    data = {"last_seq": experiment.last_seq, "after": after}
    try:
        curves = read_curves(session, [experiment.id], after=after, max_points=MAX_POINTS)
    except TooFewPoints:
        return {**data, "series": None}
    if not curves:
        return None
    return {**data, "series": [series_out(curve).model_dump() for curve in curves]}
