"""Claims and requests to give way wait for no row that another transaction has locked, and a run
that its owner cancels meanwhile does not start. SQLite has only one writer."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import select

from service.db.engine import Database
from service.experiments.models import Experiment
from service.queue import giving_way, lease, states
from service.queue.giving_way import Decision
from service.settings import Settings
from service.vocabulary import DesiredState, Status
from service.workers.models import Worker
from tests.service.queue.test_giving_way import lab_with_two_users
from tests.support.shared_lab import WITHIN_S
from tests.support.sliced_lab import SlicedLab
from tests.support.starting import start_next

SOON_S = 10.0
"""Less than PostgreSQL waits for a lock."""


@pytest.fixture
def several(lab: Settings) -> Iterator[Database]:
    """The PostgreSQL of a lab, with connections for several transactions."""
    with closing(Database(lab.url, connections=6)) as database:
        yield database


def ends_soon(act: Callable[[], object]) -> bool:
    """Return whether something ends soon that runs beside an open transaction."""
    beside = threading.Thread(target=act)
    beside.start()
    beside.join(SOON_S)
    return not beside.is_alive()


def reserved(database: Database) -> tuple[SlicedLab, str]:
    """A lab whose only run has just given way to another experiment."""
    lab, long, other = lab_with_two_users(database)
    with database.transaction() as session:
        giving_way.ask(session, Decision({long: other}, {}))
    with database.transaction() as session:
        lease.give_way(session, lab.going[long].claim)
    return lab, other


def claim(lab: SlicedLab) -> None:
    with lab.database.transaction() as session:
        start_next(session, "cpu0", fair_share=lab.fair_share, within_s=WITHIN_S)


def test_a_cancelled_experiment_does_not_start_on_its_reserved_worker(several: Database) -> None:
    lab, other = reserved(several)
    with several.transaction() as session:
        assert states.request(session, other, DesiredState.CANCEL) == Status.CANCELLED
        session.flush()
        assert ends_soon(lambda: claim(lab))
    with several.snapshot() as session:
        assert session.get_one(Experiment, other).status == Status.CANCELLED


def test_requests_to_give_way_wait_for_no_frozen_worker(several: Database) -> None:
    lab, long, other = lab_with_two_users(several)

    def ask() -> None:
        with several.transaction() as session:
            giving_way.ask(session, Decision({long: other}, {"cpu0": other}))

    with several.transaction() as session:
        session.execute(select(Worker.id).where(Worker.id == "cpu0").with_for_update())
        assert ends_soon(ask)
        with several.transaction() as beside:
            assert lease.heartbeat(beside, lab.going[long].claim, 60.0).gives_way
