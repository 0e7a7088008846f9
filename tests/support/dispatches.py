"""Dispatches that no worker has claimed yet."""

from service.db.engine import Database
from service.queue.dispatch import dispatch_next


def dispatched(database: Database) -> tuple[str, int]:
    """The next experiment of the queue, and its dispatch number."""
    with database.transaction() as session:
        dispatch = dispatch_next(session)
    assert dispatch is not None
    return dispatch.experiment_id, dispatch.dispatch_no
