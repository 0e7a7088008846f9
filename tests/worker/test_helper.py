"""A run that shares its work, and its helper, each with a runner that does what is written."""

import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from mptcore.protocol.exit_codes import NOT_WORTHWHILE, STOPPED
from service.queue import division, helping, lease
from service.queue.helping import HelpClaim
from service.queue.lease import Claim
from service.settings import Settings
from service.tables.engine import Database, now
from service.tables.experiments import Attempt
from service.tables.helpers import Help, SentBatch
from tests.support.attempts import claimed
from tests.support.helps import BATCH, ENVIRONMENT, LEASE_S, PACKED
from tests.support.scripted import Clock, ScriptedRunner, Watch, points
from worker import helper
from worker.children import GONE
from worker.helper import HelpSupervision
from worker.runner import Record, Runner
from worker.sharing import Sharing

UNNUMBERED = {"seq": None}
LIKE: Record = {**UNNUMBERED, "record": "environment", **ENVIRONMENT}
SCORES: Record = {**UNNUMBERED, "record": "scores", **BATCH}


def record(kind: str, **fields: Any) -> Record:
    return {**UNNUMBERED, "record": kind, **fields}


@pytest.fixture
def help_claim(database: Database, claim: Claim) -> HelpClaim:
    """A help for the claimed attempt."""
    with database.transaction() as session:
        session.execute(update(Attempt).values(environment=ENVIRONMENT))
        row = Help(
            experiment_id=claim.experiment_id, attempt=claim.attempt, owner_id=1, queue="cpu"
        )
        session.add(row)
        session.flush()
        found = helping.begin(session, row.id, "helper", LEASE_S)
    assert found is not None
    return found


Helped = Callable[..., tuple[str, ScriptedRunner]]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"max_workers": 2})


@pytest.fixture
def helped(
    database: Database,
    settings: Settings,
    help_claim: HelpClaim,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> Helped:
    """Run a help whose runner gives these records look by look."""
    monkeypatch.setattr(helper, "time", clock)

    def run(*looks: Any, is_stopping: Any = lambda: False, **more: Any) -> Any:
        runner = ScriptedRunner(clock, *looks, is_complete=False, **more)
        supervised = HelpSupervision(database, settings, help_claim, cast(Runner, runner))
        return supervised.run(is_stopping), runner

    return run


def test_a_run_shares_its_work_once_it_has_a_helper(
    watch: Watch, claim: Claim, help_claim: HelpClaim, database: Database
) -> None:
    of = claim.experiment_id, claim.attempt
    looks: list[list[Record]] = [
        *[[] for _ in range(40)],
        [record("division", next=6)],
        [record("plan", number=0, values=[4]), record("claim", count=2)],
        *[[] for _ in range(8)],
        points(1),
    ]
    ended, runner = watch.run(*looks)
    assert ended == "succeeded"
    assert runner.orders[1:] == [{"divide": True}, {"span": [6, 2]}]
    with database.transaction() as session:
        assert division.plans(session, *of) is None  # they end with the attempt


def test_a_run_without_a_helper_is_not_asked_to_share(watch: Watch) -> None:
    _, runner = watch.run(*[[] for _ in range(40)], points(1))
    assert len(runner.orders) == 1


def test_where_one_worker_is_the_most_a_run_looks_for_no_helper(
    watch: Watch, help_claim: HelpClaim
) -> None:
    watch.settings = watch.settings.model_copy(update={"max_workers": 1})
    _, runner = watch.run(*[[] for _ in range(40)], points(1))
    assert len(runner.orders) == 1


def test_scores_of_helpers_reach_the_run(
    watch: Watch, claim: Claim, help_claim: HelpClaim, database: Database
) -> None:
    """Each once, however often the run looks for them."""
    with database.transaction() as session:
        division.send_scores(session, claim.experiment_id, claim.attempt, help_claim.id, [PACKED])
    _, runner = watch.run([record("division", next=0)], *[[] for _ in range(40)], points(1))
    assert [one["scores"] for one in runner.orders if "scores" in one] == [[BATCH]]


def test_a_run_does_not_wait_for_a_helper_that_hangs_in_a_transaction(lab: Settings) -> None:
    """Its claim and its plans wait, and its lease is renewed meanwhile."""
    runner = ScriptedRunner(Clock())
    with closing(Database(lab.url)) as database, closing(Database(lab.url)) as other:
        claim = claimed(database)
        of = claim.experiment_id, claim.attempt
        sharing = Sharing(claim, max_workers=2)

        def exchange() -> list[dict[str, Any]]:
            runner.orders.clear()
            with database.transaction() as session:
                session.execute(text("SET LOCAL lock_timeout = '5s'"))
                lease.heartbeat(session, claim, LEASE_S)
                sharing.exchange(session)
            sharing.answer(cast(Runner, runner))
            return runner.orders

        sharing.take(record("division", next=6))
        assert sharing.is_urgent
        assert exchange() == []
        with other.transaction() as hung:
            assert division.claim_span(hung, *of, 3) == 6
            sharing.take(record("plan", number=0, values=[4]))
            sharing.take(record("claim", count=2))
            assert sharing.is_urgent
            assert exchange() == []
            assert not sharing.is_urgent  # it is tried again a little later
        assert exchange() == [{"span": [9, 2]}]
        assert exchange() == []
        with database.snapshot() as session:
            assert division.plans(session, *of) == [{"number": 0, "values": [4]}]


def test_a_helper_claims_and_sends(
    helped: Helped, claim: Claim, help_claim: HelpClaim, database: Database
) -> None:
    of = claim.experiment_id, claim.attempt
    with database.transaction() as session:
        division.begin(session, *of, 3)
        division.publish_plans(session, *of, [{"number": 0, "values": [1]}])
    reason, runner = helped([LIKE], [record("claim", count=4)], [SCORES], [])
    assert reason == "nothing is left to compute"
    assert runner.orders[0]["helps"] is True
    assert {"span": [3, 4]} in runner.orders
    assert [one["plans"] for one in runner.orders if "plans" in one] == [
        [{"number": 0, "values": [1]}]
    ]
    with database.snapshot() as session:
        assert session.scalar(select(SentBatch.number)) == BATCH["number"]
        assert session.scalar(select(Help.batches)) == 1


def test_a_helper_asks_the_database_seldom(
    helped: Helped, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once if a claim is new or many scores wait, else at the first look after half a second."""
    beats: list[float] = []
    beat = helping.beat

    def noted(*arguments: Any) -> None:
        beats.append(clock.now)
        beat(*arguments)

    monkeypatch.setattr(helping, "beat", noted)
    quiet: list[list[Record]] = [[SCORES] for _ in range(60)]
    began = clock.now
    helped([LIKE], *quiet, [record("claim", count=1)], *quiet, status=0)
    took = clock.now - began
    slowest = took / (helper.CONTACT_S + helper.READ_S)
    assert slowest - 1 <= len(beats) <= took / helper.CONTACT_S + 2
    gaps = sorted(late - early for early, late in pairwise(beats))
    assert gaps[-1] <= helper.CONTACT_S + 2 * helper.READ_S
    beats.clear()
    monkeypatch.setattr(helper, "MAX_UNSENT", 20)
    helped([LIKE], *quiet, status=0)
    assert len(beats) >= 6


def test_a_helper_waits_a_while_until_the_run_shares_its_work(
    helped: Helped, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, runner = helped([LIKE], [record("claim", count=1)], [], [])
    assert len(runner.orders) == 1
    monkeypatch.setattr(helper, "IDLE_S", 3.0)
    reason, runner = helped([LIKE], [record("claim", count=1)], status=None)
    assert reason == helper.NO_WORK
    assert 3 <= runner.heard[-1][0] <= 4


def test_a_helper_that_computes_for_long_goes_on(
    helped: Helped, claim: Claim, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "IDLE_S", 1.0)
    with database.transaction() as session:
        division.begin(session, claim.experiment_id, claim.attempt, 3)
    looks: list[list[Record]] = [[LIKE], [record("claim", count=1)], *[[] for _ in range(60)]]
    assert helped(*looks, [SCORES])[0] == "nothing is left to compute"


@pytest.mark.parametrize(("remaining_s", "patience_s"), [(None, 60), (30.0, 60), (200.0, 100)])
def test_a_helper_that_does_not_catch_up_with_its_run_ends(
    database: Database,
    settings: Settings,
    help_claim: HelpClaim,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    remaining_s: float | None,
    patience_s: float,
) -> None:
    """It repeats draws and fits for too long, compared with what is left to do."""
    monkeypatch.setattr(helper, "time", clock)
    busy = settings
    claim = replace(help_claim, remaining_s=remaining_s)
    runner = ScriptedRunner(clock, [LIKE], status=None)
    began = clock.now
    reason = HelpSupervision(database, busy, claim, cast(Runner, runner)).run(lambda: False)
    assert reason == f"{helping.LITTLE_USE}it repeats what the run did before for too long"
    assert patience_s <= clock.now - began <= patience_s + 1
    with database.transaction() as session:
        division.begin(session, claim.experiment_id, claim.attempt, 0)
    quiet: list[list[Record]] = [[] for _ in range(int(0.8 * patience_s / helper.READ_S))]
    asks = record("claim", count=1)
    looks = [[LIKE], [asks], *quiet, [SCORES, asks], *quiet, [SCORES]]
    working = ScriptedRunner(clock, *looks, is_complete=False)
    reason = HelpSupervision(database, busy, claim, cast(Runner, working)).run(lambda: False)
    assert reason == helping.FINISHED
    repeating = ScriptedRunner(clock, [LIKE], [asks], status=None)  # its draws follow its claim
    reason = HelpSupervision(database, busy, claim, cast(Runner, repeating)).run(lambda: False)
    assert reason.endswith("it repeats what the run did before for too long")


def test_the_time_that_a_helper_waits_for_work_does_not_count(
    database: Database,
    settings: Settings,
    help_claim: HelpClaim,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run shares its work after 80 seconds, and the first batch takes 50."""
    monkeypatch.setattr(helper, "time", clock)
    monkeypatch.setattr(helper, "IDLE_S", 100.0)
    began, shares = clock.now, division.plans

    def late(session: Session, experiment_id: str, attempt: int) -> Any:
        if clock.now >= began + 80:
            division.begin(session, experiment_id, attempt, 0)
        return shares(session, experiment_id, attempt)

    monkeypatch.setattr(division, "plans", late)
    quiet: list[list[Record]] = [[] for _ in range(int(130 / helper.READ_S))]
    looks = [[LIKE], [record("claim", count=1)], *quiet, [SCORES]]
    runner = ScriptedRunner(clock, *looks, is_complete=False)
    help_ = HelpSupervision(database, settings, help_claim, cast(Runner, runner))
    assert help_.run(lambda: False) == helping.FINISHED


def test_a_helper_that_the_kernel_kills_for_memory_is_the_last(
    helped: Helped, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [5, 6]
    monkeypatch.setattr(helper, "kernel_kills", lambda: counts.pop(0))
    assert helped([LIKE], status=-signal.SIGKILL)[0] == helping.NO_MEMORY


@pytest.mark.parametrize(
    "bad",
    [
        {"record": "claim"},
        {"record": "claim", "count": "x"},
        {"record": "scores"},
        {"record": "scores", "number": 1, "shape": [1, 1, 1], "data": "no base64!"},
    ],
)
def test_a_malformed_record_ends_a_help(helped: Helped, bad: Record) -> None:
    reason, _ = helped([LIKE], [{**UNNUMBERED, **bad}])
    assert reason.startswith("its process failed: a record is malformed: ")


def test_an_unlike_worker_sends_nothing(helped: Helped, database: Database) -> None:
    """Not even scores that come with its environment."""
    reason, _ = helped([{**LIKE, "cpu": "another"}, SCORES], [])
    assert reason == "its worker is unlike the run's: cpu"
    reason, _ = helped([SCORES], [])
    assert reason == "nothing is left to compute"
    with database.snapshot() as session:
        assert session.scalar(select(SentBatch.number)) is None


def test_a_helper_gives_way_at_once(
    helped: Helped, help_claim: HelpClaim, database: Database
) -> None:
    """At its next contact, whatever its process does."""
    with database.transaction() as session:
        session.execute(update(Help).values(must_stop=True))
    reason, runner = helped([LIKE], status=None)
    assert reason == "its worker is needed for an experiment"
    assert runner.told[-1][1] == "kill"
    assert runner.heard[-1][0] <= helper.CONTACT_S + helper.READ_S


def test_a_helper_ends_with_the_attempt(helped: Helped, claim: Claim, database: Database) -> None:
    with database.transaction() as session:
        lease.release(session, claim)
    assert helped([LIKE], [SCORES], status=None)[0] == "the attempt has ended"
    with database.snapshot() as session:
        assert session.scalar(select(SentBatch.number)) is None


def test_a_helper_ends_with_its_worker_and_its_process(helped: Helped, settings: Settings) -> None:
    assert helped([LIKE], status=None, is_stopping=lambda: True)[0] == "its worker stops"
    failure = record("failure", cause="error", message="no such file")
    assert helped([LIKE, failure])[0] == "its process failed: no such file"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (0, helping.FINISHED),
        (NOT_WORTHWHILE, f"{helping.LITTLE_USE}it mostly draws masks"),
        (STOPPED, "it could not read the checkpoints of the run"),
        (-signal.SIGKILL, "its process was killed"),
        (GONE, "its process was killed"),
        (-signal.SIGSEGV, "its process failed: it ended with status -11"),
        (1, "its process failed: it ended with status 1"),
    ],
)
def test_a_help_reports_the_exit_of_its_process(helped: Helped, status: int, reason: str) -> None:
    assert helped([LIKE], status=status)[0] == reason


def test_a_helper_renews_its_lease(helped: Helped, database: Database) -> None:
    with database.transaction() as session:
        session.execute(update(Help).values(lease_expires_at=now() - 5))
    helped([LIKE], [])
    with database.snapshot() as session:
        assert session.scalar(select(Help.lease_expires_at > now()))
