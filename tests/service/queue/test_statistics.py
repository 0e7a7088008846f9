"""Counters of monitoring: each attempt counts once, before and after it is folded."""

from collections import Counter
from collections.abc import Iterator

from service.db.engine import Database
from service.experiments.schemas import Submission
from service.fair_share import FairShare
from service.queue import lease, ledger, states
from service.queue.lease import FailureCause
from service.queue.statistics import Statistics, statistics
from service.vocabulary import DesiredState, Status
from tests.support import stored
from tests.support.attempts import claim_next, claimed, submitted
from tests.support.ppca_spec import ppca_spec
from tests.support.starting import release_held
from tests.support.stored import change


def before_and_after_a_fold(database: Database) -> Iterator[Statistics]:
    with database.transaction() as session:
        yield statistics(session)
        ledger.fold(session, FairShare())
        yield statistics(session)


def test_several_attempts_at_an_experiment(either: Database) -> None:
    """They are one wait and one run, also if they are folded one after the other."""
    claim = claimed(either)
    change(either, claim.experiment_id, created_at=100.0, started_at=110.0)
    for figures in before_and_after_a_fold(either):
        assert (figures.waits, figures.waits_s, figures.runs) == (1, 10, 0)
    with either.transaction() as session:
        lease.mark_lost(session, claim, max_lost=3)
    for figures in before_and_after_a_fold(either):
        assert (figures.waits, figures.lost, figures.runs) == (1, 1, 0)
    claim = claim_next(either)
    with either.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
    change(either, claim.experiment_id, finished_at=150.0)
    for figures in before_and_after_a_fold(either):
        assert (figures.waits, figures.waits_s, figures.lost) == (1, 10, 1)
        assert (figures.runs, figures.runs_s, figures.failures) == (1, 40, Counter())


def test_kinds_of_failures(either: Database) -> None:
    """A full disk counts when the experiment fails, not each time that it is handed back."""
    claim = claimed(either)
    full = FailureCause("disk_full", "no space")
    with either.transaction() as session:
        assert lease.hand_back(session, claim, full.kind, 1, full) == Status.QUEUED
        assert statistics(session).failures == Counter()
    claim = claim_next(either)
    with either.transaction() as session:
        assert lease.hand_back(session, claim, full.kind, 1, full) == Status.FAILED
    claim = claimed(either)
    with either.transaction() as session:
        assert lease.mark_lost(session, claim, max_lost=0) == Status.FAILED
    for figures in before_and_after_a_fold(either):
        assert figures.failures == Counter({"disk_full": 1, "lost": 1})
        assert (figures.lost, figures.waits, figures.runs) == (1, 2, 2)


def test_experiments_that_end_while_they_wait(either: Database) -> None:
    """One that never starts is counted by its status alone. One that is cancelled between two
    attempts has waited, and its run has no end."""
    claim = claimed(either)
    change(either, claim.experiment_id, desired_state=DesiredState.PAUSE)
    with either.transaction() as session:
        assert lease.release(session, claim) == Status.PAUSED
    first = claimed(either)
    submission = Submission.model_validate({"spec": ppca_spec()})
    with either.transaction() as session:
        stored.submit(session, 1, submission, unfinished=[first.experiment_id])
    with either.transaction() as session:
        lease.finish(session, first, Status.FAILED, FailureCause("oom", "why"))
    release_held(either)
    for experiment_id in (claim.experiment_id, submitted(either)):
        with either.transaction() as session:
            assert states.request(session, experiment_id, DesiredState.CANCEL) == "cancelled"
    for figures in before_and_after_a_fold(either):
        assert figures.by_status == Counter(failed=2, cancelled=2)
        assert figures.failures == Counter(oom=1)
        assert (figures.waits, figures.runs) == (2, 1)
