"""Claims and scores of helpers: none outlives its experiment."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from sqlalchemy import func, select, text

from service.queue import division, helping, lease, states
from service.settings import Settings
from service.tables.engine import Database
from service.tables.experiments import DesiredState, Status
from service.tables.helpers import DividedRun, SentBatch
from tests.support.helps import LEASE_S, PACKED, add_workers, begun, long_run
from tests.support.processes import wait_until


def leftovers(database: Database) -> int:
    """Number of claims and batches that are stored."""
    with database.snapshot() as session:
        tables = DividedRun.experiment_id, SentBatch.experiment_id
        return sum(session.scalar(select(func.count(one))) or 0 for one in tables)


def test_an_experiment_that_ends_between_attempts_leaves_no_batches(either: Database) -> None:
    """Its attempt was handed back, and then it is cancelled; or its last attempt is lost."""
    run = long_run(either)
    add_workers(either, "w", "w1")
    claim = begun(either)
    of = run.experiment_id, run.attempt
    with either.transaction() as session:
        division.begin(session, *of, 3)
        division.send_scores(session, *of, claim.id, [PACKED])
        lease.release(session, run)
    assert leftovers(either) == 2
    with either.transaction() as session:
        states.request(session, run.experiment_id, DesiredState.CANCEL)
    assert leftovers(either) == 0


def test_no_helper_adds_batches_to_an_experiment_that_has_ended(lab: Settings) -> None:
    """A helper whose transaction has begun is waited for."""
    locks = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with closing(Database(lab.url)) as database, ThreadPoolExecutor(1) as beside:
        run = long_run(database)
        add_workers(database, "w", "w1")
        claim = begun(database)
        of = run.experiment_id, run.attempt
        with database.transaction() as session:
            division.begin(session, *of, 3)

        def finish() -> None:
            with database.transaction() as session:
                lease.finish(session, run, Status.SUCCEEDED)

        with database.transaction() as session:
            helping.beat(session, claim, LEASE_S)
            ended = beside.submit(finish)
            wait_until(
                lambda: ended.done() or session.execute(locks).scalar_one() > 0,
                what="the end of the run",
            )
            division.send_scores(session, *of, claim.id, [PACKED])
            division.claim_span(session, *of, 1)
        ended.result()
        assert leftovers(database) == 0
