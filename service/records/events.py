"""Read events in order: of one experiment with its points, or of many experiments with notices
about running ones.

The events of one experiment are written while its row is locked, so they are committed in the order
of their ids. Across experiments an event may become visible after another one with a higher id. So
readers of many experiments stop at a horizon (`service.events.changes`).
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.db.engine import moment
from service.experiments.models import Event, Experiment, Status
from service.queue.states import is_terminal
from service.records.curves import AnyRow, TooFewPoints, read_curves, series_out
from service.schemas import ResponseModel

MAX_POINTS = 10_000
"""Maximum number of points in one event. More are downsampled."""


class Kind(StrEnum):
    """Type of an event."""

    STATUS = "status"
    LOG = "log"
    PROGRESS = "progress"
    POINTS = "points"


class EventOut(ResponseModel):
    """An event."""

    id: str
    """Pass it as `after` or Last-Event-ID to get later events."""
    kind: Kind
    """Kind of the event: `status`, `log`, `progress` or `points`."""
    experiment_id: str
    """Id of the experiment."""
    at: datetime | None
    """Time of the event. null for progress and points, which report the current state."""
    data: dict[str, Any]
    """Content, by the kind."""


class EventCursor(NamedTuple):
    """A position in the events: the last event, the progress and the last record of points that
    were sent."""

    event: int = 0
    done: int = 0
    seq: int = 0

    def __str__(self) -> str:
        return "-".join(map(str, self)) if self.done or self.seq else str(self.event)


class Reading(NamedTuple):
    """Some events and the position after them. If `whole` is false, more can be read at once."""

    events: list[EventOut]
    place: EventCursor
    whole: bool
    over: bool
    """True if no more events will come."""


def of_one(
    session: Session,
    experiment: Experiment,
    after: EventCursor,
    kinds: Collection[Kind],
    limit: int,
) -> Reading:
    """Return about `limit` events of an experiment after a position. Points precede the event that
    ends the experiment. The session must be consistent."""
    query = select(Event).where(Event.experiment_id == experiment.id)
    query = query.where(Event.id > after.event, Event.kind.in_(kinds))
    stored = [*session.scalars(query.order_by(Event.id).limit(limit))]
    whole = len(stored) < limit
    ending = [stored.pop()] if stored and _ends(stored[-1]) else []
    events, place = _told(stored, after)
    if whole or ending:
        if Kind.PROGRESS in kinds and _moved(experiment, place):
            place = place._replace(done=experiment.progress_done or 0)
            events.append(_notice(place, Kind.PROGRESS, experiment.id, _progress(experiment)))
        if Kind.POINTS in kinds and experiment.last_seq > place.seq:
            points = _points(session, experiment, place.seq)
            place = place._replace(seq=experiment.last_seq)
            if points is not None:
                events.append(_notice(place, Kind.POINTS, experiment.id, points))
    last, place = _told(ending, place)
    whole = whole or bool(ending)
    return Reading(events + last, place, whole, whole and is_terminal(experiment.status))


def latest(session: Session, experiment: Experiment) -> EventCursor:
    """Return the position after all events of an experiment."""
    last = select(func.max(Event.id)).where(Event.experiment_id == experiment.id)
    return EventCursor(
        session.scalar(last) or 0, experiment.progress_done or 0, experiment.last_seq
    )


def of_many(
    session: Session,
    which: ColumnElement[bool],
    after: EventCursor,
    until: int,
    kinds: Collection[Kind],
    limit: int,
) -> tuple[list[EventOut], EventCursor, bool]:
    """Return the events of several experiments after a position up to an event id, the new
    position, and whether there are no more."""
    query = (
        select(Event)
        .join(Experiment, Experiment.id == Event.experiment_id)
        .where(which, Event.id > after.event, Event.id <= until, Event.kind.in_(kinds))
    )
    stored = session.scalars(query.order_by(Event.id).limit(limit)).all()
    events, place = _told(stored, EventCursor(after.event))
    whole = len(stored) < limit
    return events, EventCursor(max(place.event, until) if whole else place.event), whole


def under_way(session: Session, which: ColumnElement[bool]) -> Sequence[AnyRow]:
    """Return the progress of the running experiments among these."""
    wanted = ("id", "last_seq", "progress_done", "progress_total", "progress_unit")
    query = select(*(getattr(Experiment, name) for name in wanted))
    query = query.where(which, Experiment.status == Status.RUNNING)
    return session.execute(query.order_by(Experiment.id)).all()


def notices(
    rows: Sequence[AnyRow],
    place: EventCursor,
    kinds: Collection[Kind],
    known: dict[str, EventCursor],
) -> list[EventOut]:
    """Return progress notices about running experiments that are not `known` yet, and update
    `known`. Their ids are those of the previous event."""
    found = []
    for ended in known.keys() - {row.id for row in rows}:
        del known[ended]
    for row in rows:
        before = known.get(row.id, EventCursor())
        known[row.id] = EventCursor(0, row.progress_done or 0, row.last_seq)
        if Kind.PROGRESS in kinds and _moved(row, before):
            found.append(_notice(place, Kind.PROGRESS, row.id, _progress(row)))
        if Kind.POINTS in kinds and row.last_seq > before.seq:
            data = {"last_seq": row.last_seq, "series": None}
            found.append(_notice(place, Kind.POINTS, row.id, data))
    return found


def _told(stored: Sequence[Event], place: EventCursor) -> tuple[list[EventOut], EventCursor]:
    events = []
    for one in stored:
        place = place._replace(event=one.id)
        data = dict(one.data)
        if one.kind == Kind.STATUS:
            data["terminal"] = is_terminal(data["status"])
        else:
            data["seq"] = one.seq
        events.append(
            EventOut.model_construct(
                id=str(place),
                kind=Kind(one.kind),
                experiment_id=one.experiment_id,
                at=moment(one.at),
                data=data,
            )
        )
    return events, place


def _ends(event: Event) -> bool:
    return event.kind == Kind.STATUS and is_terminal(event.data["status"])


def _notice(place: EventCursor, kind: Kind, experiment_id: str, data: dict[str, Any]) -> EventOut:
    return EventOut(id=str(place), kind=kind, experiment_id=experiment_id, at=None, data=data)


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
    said = {"last_seq": experiment.last_seq, "after": after}
    try:
        found = read_curves(session, [experiment.id], after=after, max_points=MAX_POINTS)
    except TooFewPoints:
        return {**said, "series": None}
    if not found:
        return None
    return {**said, "series": [series_out(one).model_dump() for one in found]}
