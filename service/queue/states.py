"""States of experiments: requests of owners, and their effects.

Every function takes a session and commits nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, insert, select, update
from sqlalchemy.orm import Session

from service.db.engine import now
from service.db.notices import notify
from service.experiments.models import Event, Experiment
from service.queue import holds
from service.vocabulary import TERMINAL, UNFINISHED, WAITING, DesiredState, Status
from service.webhooks import store as webhooks


def note_status(session: Session, experiment_id: str, status: Status, **details: object) -> None:
    """Record the new status of an experiment. If it is no longer under way, another point of its
    sweep may start."""
    data = {"status": status, **details}
    session.add(Event(experiment_id=experiment_id, kind="status", data=data))
    notify(session)
    if is_terminal(status):
        webhooks.announce(session, [experiment_id], status)
    if status not in holds.OPEN:
        holds.fill_sweep_of(session, experiment_id)


def request(session: Session, experiment_id: str, desired: DesiredState) -> Status | None:
    """Request that an experiment is cancelled, paused or resumed (RUN): at once if it waits,
    through its attempt if it runs. Return its status afterwards, or None if its status does not
    allow the request."""
    from_states, to_state = AT_ONCE[desired]
    session.execute(select(Experiment.id).where(Experiment.id == experiment_id).with_for_update())
    waiting = session.execute(
        update(Experiment)
        .where(Experiment.id == experiment_id, Experiment.status.in_(from_states))
        .values(
            status=to_state,
            desired_state=desired,
            finished_at=now() if to_state == Status.CANCELLED else None,
        )
        .returning(Experiment.id)
    ).one_or_none()
    if waiting is not None:
        if to_state == Status.QUEUED:
            holds.hold_resumed(session, experiment_id)
        note_status(session, experiment_id, to_state)
        if to_state == Status.QUEUED:
            _forget_older_statuses(session, experiment_id)
        return to_state
    running = session.execute(
        update(Experiment)
        .where(
            Experiment.id == experiment_id,
            Experiment.status == Status.RUNNING,
            Experiment.desired_state.in_((desired, DesiredState.RUN, DesiredState.PAUSE)),
        )
        .values(desired_state=desired)
        .returning(Experiment.id)
    ).one_or_none()
    return None if running is None else Status.RUNNING


MAX_STATUSES = 1000
"""Maximum number of status events kept, because an owner may pause and resume any number of
times."""


def _forget_older_statuses(session: Session, experiment_id: str) -> None:
    own = (Event.experiment_id == experiment_id, Event.kind == "status")
    newest_first = select(Event.id).where(*own).order_by(Event.id.desc())
    beyond = newest_first.offset(MAX_STATUSES).limit(1).scalar_subquery()
    session.flush()
    forget = delete(Event).where(*own, Event.id <= beyond)
    session.execute(forget.execution_options(synchronize_session=False))


AT_ONCE = {
    DesiredState.CANCEL: (WAITING, Status.CANCELLED),
    DesiredState.PAUSE: ((Status.QUEUED,), Status.PAUSED),
    DesiredState.RUN: ((Status.PAUSED,), Status.QUEUED),
}
"""Waiting states that change at once, and their new status, by desired state."""


def is_terminal(status: str) -> bool:
    return status in TERMINAL


class Cancelled(NamedTuple):
    """Experiments that a request cancelled, by their ids."""

    ids: Sequence[str]
    at_once: Sequence[str]
    """Ids that have ended. The others are running, and their attempts end them."""


def cancel_all(session: Session, which: ColumnElement[bool]) -> Cancelled:
    """Cancel all unfinished experiments that meet a condition, in a few statements."""
    mine = (which, Experiment.status.in_(UNFINISHED))
    held = select(Experiment.id).where(*mine).order_by(Experiment.id).with_for_update()
    found = session.scalars(held).all()
    change = update(Experiment).where(*mine).execution_options(synchronize_session=False)
    cancelled = session.scalars(
        change.where(Experiment.status.in_(WAITING))
        .values(status=Status.CANCELLED, desired_state=DesiredState.CANCEL, finished_at=now())
        .returning(Experiment.id)
    ).all()
    session.execute(change.values(desired_state=DesiredState.CANCEL))
    data = {"status": Status.CANCELLED}
    events = [{"experiment_id": one, "kind": "status", "data": data} for one in cancelled]
    if events:
        session.execute(insert(Event), events)
        notify(session)
        webhooks.announce(session, cancelled, Status.CANCELLED)
    return Cancelled(found, cancelled)
