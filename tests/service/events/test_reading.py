"""The state of several experiments, and the events after it."""

from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.engine import Database
from service.events.poller import Listener
from service.events.reading import Kind, Reading, SeveralExperiments
from service.experiments.models import Event
from service.queue import lease
from service.vocabulary import Status
from tests.support.attempts import claimed
from tests.support.stored import LOCAL


def test_events_that_the_state_includes_are_not_repeated(either: Database) -> None:
    """They were committed before the state was read, and the poller reports them afterwards."""
    source = SeveralExperiments(LOCAL, None, [Kind.STATUS])
    listener = Listener(source.subject, LOCAL)
    claim = claimed(either)

    def statuses(read: Callable[[Session], Reading]) -> list[str]:
        with either.snapshot() as session:
            return [event.data["status"] for event in read(session).events]

    assert statuses(source.next(listener, floor=0)) == ["running"]
    with either.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
    with either.snapshot() as session:
        listener.pending = [*session.scalars(select(Event.id))]
    assert statuses(source.next(listener, floor=0)) == ["succeeded"]
