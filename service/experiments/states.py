"""What an experiment's owner wants of it, and what becomes of it: its states.

Every function takes a session and commits nothing.
"""

from sqlalchemy import (
    select,
    update,
)
from sqlalchemy.orm import Session

from service.database import now
from service.experiments.models import (
    TERMINAL,
    WAITING,
    DesiredState,
    Event,
    Experiment,
    Status,
)


def note_status(session: Session, experiment_id: str, status: Status, **details: object) -> None:
    data = {"status": status, **details}
    session.add(Event(experiment_id=experiment_id, kind="status", data=data))


def request(session: Session, experiment_id: str, desired: DesiredState) -> Status | None:
    """Have an experiment cancelled, paused or (RUN) resumed: at once where it waits, by its
    attempt where it runs. Its status after that, or None where its state does not allow it."""
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
        note_status(session, experiment_id, to_state)
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


AT_ONCE = {
    DesiredState.CANCEL: (WAITING, Status.CANCELLED),
    DesiredState.PAUSE: ((Status.QUEUED, Status.DISPATCHED), Status.PAUSED),
    DesiredState.RUN: ((Status.PAUSED,), Status.QUEUED),
}
"""By what is desired: from which waiting states it is had at once, and to which."""


def is_terminal(status: str) -> bool:
    return status in TERMINAL
