"""Read the events of a listener's subject after its position."""

from collections.abc import Collection

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from service.accounts.permissions import find
from service.accounts.users import Caller
from service.db.visibility import shared
from service.events.changes import Subject
from service.experiments.models import UNFINISHED, Event, Experiment
from service.records import events
from service.records.curves import hold_still
from service.records.events import EventCursor, Kind, Reading
from service.sweeps.models import Sweep

PAGE = 500
"""Number of events read at once."""


class OneExperiment:
    """An experiment, with its points."""

    needs_horizon = False
    """True if reading stops at the horizon, because event ids are not in the order of commits."""

    def __init__(self, user: Caller, experiment_id: str, kinds: Collection[Kind]):
        self.subject = Subject("experiment", experiment_id)
        self._user = user
        self._id = experiment_id
        self._kinds = kinds

    def check(self, session: Session) -> None:
        """Raises ApiError if the caller may not read it."""
        find(session, self._user, Experiment, self._id)

    def read(self, session: Session, after: EventCursor | None, until: int, limit: int) -> Reading:
        """Return the events after a position (None: from now on), up to a horizon. Raises ApiError
        like `check`."""
        hold_still(session)
        experiment = find(session, self._user, Experiment, self._id)
        if after is None:
            after = events.latest(session, experiment)
        return events.of_one(session, experiment, after, self._kinds, limit)


class ManyExperiments:
    """The experiments of a sweep, or all of the user's own, with notices about running ones."""

    needs_horizon = True

    def __init__(self, user: Caller, sweep_id: str | None, kinds: Collection[Kind]):
        self.subject = Subject("sweep", sweep_id) if sweep_id else Subject("user", user.id)
        self._user = user
        self._sweep_id = sweep_id
        self._kinds = kinds
        self._known: dict[str, EventCursor] = {}

    def check(self, session: Session) -> None:
        self._which(session)

    def read(self, session: Session, after: EventCursor | None, until: int, limit: int) -> Reading:
        hold_still(session)
        which = self._which(session)
        if after is None:
            after = EventCursor(until)
        over = self._sweep_id is not None and self._has_ended(session, which, until)
        found, place, whole = events.of_many(session, which, after, until, self._kinds, limit)
        if whole:
            runs = events.under_way(session, which)
            found += events.notices(runs, place, self._kinds, self._known)
        return Reading(found, place, whole, whole and over)

    def _which(self, session: Session) -> ColumnElement[bool]:
        there = Experiment.deleted_at.is_(None)
        if self._sweep_id is None:
            return there & (Experiment.owner_id == self._user.id)
        user = self._user
        find(session, user, Sweep, self._sweep_id)
        of_sweep = there & (Experiment.sweep_id == self._sweep_id)
        if user.is_admin:
            return of_sweep
        return of_sweep & ((Experiment.owner_id == user.id) | shared(Experiment))

    @staticmethod
    def _has_ended(session: Session, which: ColumnElement[bool], until: int) -> bool:
        """Return whether nothing more will happen to these experiments, unless points are added or
        retried."""
        unfinished = select(Experiment.id).where(which, Experiment.status.in_(UNFINISHED))
        if session.scalar(unfinished.limit(1)) is not None:
            return False
        later = select(Event.id).join(Experiment, Experiment.id == Event.experiment_id)
        return session.scalar(later.where(which, Event.id > until).limit(1)) is None


Source = OneExperiment | ManyExperiments
"""Source of a subject's events."""
