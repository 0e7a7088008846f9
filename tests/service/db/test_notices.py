"""Notices arrive soon after the commit, and waiting survives an outage."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial

import pytest
from sqlalchemy.orm import Session

from service.accounts import accounts
from service.accounts.models import User
from service.db.engine import Database
from service.db.notices import Notices
from service.experiments.models import Experiment
from service.experiments.schemas import Submission
from service.queue import drains, lease, states
from service.settings import Settings
from service.vocabulary import Status
from tests.support import stored
from tests.support.attempts import claim_next, submitted
from tests.support.ppca_spec import ppca_spec
from tests.support.servers import PostgreSQL

LONG_S = 30.0
"""Longer than any test waits for a notice."""


@pytest.fixture
def notices(either: Database) -> Iterator[Notices]:
    """Notices after the first, which a new connection gives."""
    with closing(Notices(either)) as notices:
        assert notices.wait(LONG_S)
        yield notices


def arrives(notices: Notices, act: Callable[[], object]) -> bool:
    """Act in another thread, and return whether a notice arrives."""
    thread = threading.Timer(0.2, act)
    thread.start()
    began = time.monotonic()
    arrived = notices.wait(LONG_S)
    thread.join()
    return arrived and time.monotonic() - began < LONG_S


def test_what_lets_runs_start_is_noticed(either: Database, notices: Notices) -> None:
    assert arrives(notices, lambda: submitted(either))
    claim = claim_next(either)

    def end(session: Session) -> None:
        lease.finish(session, claim, Status.SUCCEEDED)

    def cancel(session: Session) -> None:
        states.cancel_all(session, Experiment.status == Status.QUEUED)

    def allow_more(session: Session) -> None:
        accounts.change(session, session.get_one(User, 1), None, None, {"max_running": 3})

    def undrain(session: Session) -> None:
        assert drains.undrain(session, "gpu3")

    with either.transaction() as session:
        drains.drain(session, "gpu3", "ann")

    def do(change: Callable[[Session], None]) -> None:
        with either.transaction() as session:
            change(session)

    for change in (end, cancel, allow_more, undrain):
        submitted(either)
        assert notices.wait(LONG_S), "it comes before the wait begins, or soon after"
        while notices.wait(0.3):
            pass
        assert arrives(notices, partial(do, change)), change


def test_nothing_is_noticed_without_a_commit(either: Database, notices: Notices) -> None:
    with suppress(RuntimeError), either.transaction() as session:
        stored.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
        raise RuntimeError
    assert not notices.wait(0.3)


def test_an_outage(lab: Settings, postgresql: PostgreSQL) -> None:
    with closing(Database(lab.url)) as database, closing(Notices(database)) as notices:
        assert notices.wait(LONG_S)
        postgresql.stop()
        began = time.monotonic()
        assert not notices.wait(0.3)
        assert time.monotonic() - began >= 0.3, "it does not ask again and again"
        postgresql.start()
        assert notices.wait(LONG_S), "what happened meanwhile is not known"
