"""Starts of runs, and the steps of the controller.

Tests of the queue start runs through this module, so that they do not depend on how a worker finds
its next run.
"""

from collections.abc import Callable, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.experiments.models import Experiment, Queue
from service.fair_share import FairShare
from service.queue import claims, clock, holds, lease, ledger, shares, sizes, workers
from service.queue.claims import HEARD_OF_S
from service.queue.lease import Claim
from worker.slot import Slot

SILENT_S = 3600.0


def start_next(
    session: Session,
    worker: str = "w",
    queue: Queue = Queue.CPU,
    *,
    lease_s: float = 60.0,
    fair_share: FairShare | None = None,
    within_s: float = HEARD_OF_S,
) -> Claim | None:
    """Start the next run that this worker may run, or return None."""
    sharing = FairShare() if fair_share is None else fair_share
    return claims.claim(
        session, worker, queue, lease_s=lease_s, fair_share=sharing, within_s=within_s
    )


def run_next(slot: Slot, is_stopping: Callable[[], bool] = lambda: False) -> bool:
    """Have a slot start the next run and run it to its end. Return False if none was started."""
    slot.be_ready(is_stopping)
    claim = slot.claim()
    if claim is None:
        return False
    slot.run(claim, is_stopping)
    return True


def release_held(database: Database) -> None:
    """Look once at the experiments that wait, and at the sweeps with a limit."""
    for step in (holds.release_waits, holds.fill_sweeps):
        with database.transaction() as session:
            step(session)


def controller_steps(
    lease_s: float, max_lost: int, sharing: FairShare
) -> Mapping[str, Callable[[Session], object]]:
    """Return the steps of the controller by name. Each is a transaction of its own."""

    def forget_checkpoints(session: Session) -> None:
        lease.forget_checkpoints(session, session.scalars(select(Experiment.id)).all(), 0.0)

    return {
        "repair": lambda session: clock.repair(session, lease_s),
        "forget silent": lambda session: workers.forget_silent(session, SILENT_S),
        "expire": lambda session: lease.expire(session, max_lost),
        "release waits": holds.release_waits,
        "fill sweeps": holds.fill_sweeps,
        "forget checkpoints": forget_checkpoints,
        "fold": lambda session: fold(session, sharing),
    }


def fold(session: Session, fair_share: FairShare) -> None:
    """Add what has ended to the sums."""
    ledger.fold(session, fair_share)
    sizes.measure(session)


def charges(session: Session, fair_share: FairShare) -> dict[int, float]:
    """Return the usage in seconds that fair share charges each user."""
    return {one.owner_id: one.charged_s for one in shares.standings(session, fair_share)}
