"""Starts of runs, and the steps of the queue's background processes.

Tests of the queue start runs through this module, so that they do not depend on how a worker finds
its next run. Only tests of a dispatch that nobody has claimed make one themselves.
"""

import math
from collections.abc import Callable, Collection, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.experiments.models import Experiment, Queue
from service.fair_share import FairShare
from service.queue import clock, holds, lease, ledger, quota, shares, workers
from service.queue.dispatch import HEARD_OF_S, dispatch_next
from service.queue.lease import Claim
from service.records import statistics
from worker.slot import Slot

DISPATCH_TIMEOUT_S = 30.0
SILENT_S = 3600.0


def start_next(
    session: Session,
    worker: str = "w",
    queue: Queue = Queue.CPU,
    *,
    room: float = math.inf,
    memories: Collection[str] = (),
    lease_s: float = 60.0,
    fair_share: FairShare | None = None,
    within_s: float = HEARD_OF_S,
) -> Claim | None:
    """Start the next run that this worker may run with `room` bytes of its `memories`, or return
    None."""
    dispatch = dispatch_next(session, queue, fair_share, within_s)
    if dispatch is None:
        return None
    chosen = dispatch.experiment_id, dispatch.dispatch_no
    return lease.claim(
        session, *chosen, worker=worker, lease_s=lease_s, room=room, memories=memories
    )


def run_next(
    slot: Slot, is_stopping: Callable[[], bool] = lambda: False, queue: Queue = Queue.CPU
) -> bool:
    """Have a slot start the next run and run it to its end. Return False if none was started."""
    with slot.database.transaction() as session:
        dispatch = dispatch_next(session, queue)
    if dispatch is None:
        return False
    return slot.run(dispatch.experiment_id, dispatch.dispatch_no, is_stopping)


def controller_steps(
    lease_s: float, max_lost: int, dispatch_timeout_s: float = DISPATCH_TIMEOUT_S
) -> Mapping[str, Callable[[Session], object]]:
    """Return the steps of the background processes by name. Each is a transaction of its own."""

    def fill_sweeps(session: Session) -> None:
        workers.lock_dispatching(session)
        holds.release_sweeps(session)

    def forget_checkpoints(session: Session) -> None:
        lease.forget_checkpoints(session, session.scalars(select(Experiment.id)).all(), 0.0)

    return {
        "repair": lambda session: clock.repair(session, lease_s),
        "forget silent": lambda session: workers.forget_silent(session, SILENT_S),
        "expire": lambda session: lease.reap(session, dispatch_timeout_s, max_lost),
        "fill sweeps": fill_sweeps,
        "forget checkpoints": forget_checkpoints,
    }


def fold(session: Session, fair_share: FairShare) -> None:
    """Add what has ended to the sums."""
    ledger.fold(session, fair_share)
    statistics.fold(session)
    quota.fold(session, from_rows=2)


def charges(session: Session, fair_share: FairShare) -> dict[int, float]:
    """Return the usage in seconds that fair share charges each user."""
    return {one.owner_id: one.charged_s for one in shares.standings(session, fair_share)}
