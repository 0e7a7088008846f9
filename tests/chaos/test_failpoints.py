"""Every durable step as a point where the process exits; then recovery, on both databases."""

import json
import multiprocessing
import threading
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from mptcore.protocol.exit_codes import COMPLETE
from service.db.engine import Database
from service.experiments.listing import Wanted, page_of
from service.experiments.models import Block, Experiment, Queue
from service.experiments.schemas import Submission
from service.queue import states
from service.records import compaction, recording
from service.settings import Settings
from service.vocabulary import DesiredState
from tests.chaos import failing_runner, failing_worker
from tests.chaos.failing_runner import SAVE_STEPS
from tests.chaos.failing_worker import BACKGROUND, EXIT, STEPS
from tests.support import stored
from tests.support.invariants import Record, check
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until
from tests.support.records import RECORDS
from tests.support.starting import start_next
from tests.support.stub import stub
from tests.support.undisturbed import TRAINING, undisturbed_records
from worker.main import Worker
from worker.slot import Slot

QUICK = {"lease_s": 0.8, "max_lost": 1000, "warm_parent": False}

SCENARIO = {"release": "--slow", "mark_lost": "--die"}
"""Options of the stub runner for steps that need them."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def quick(request: pytest.FixtureRequest) -> Settings:
    """A store on either database, with very short leases."""
    found: Settings = request.getfixturevalue("settings" if request.param == "sqlite" else "lab")
    return found.model_copy(update=QUICK)


PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.chaos.failing_worker", "tests.chaos.failing_runner"])
"""Each a process of its own, that does not import everything again."""


def fail(settings: Settings, step: str, when: str) -> BaseProcess:
    arguments = (settings, step, when, *SCENARIO.get(step, "").split())
    failing = PROCESSES.Process(target=failing_worker.main, args=arguments)
    failing.start()
    return failing


def status(database: Database, experiment_id: str) -> str:
    with database.snapshot() as session:
        return session.get_one(Experiment, experiment_id).status


def recover(settings: Settings, database: Database, experiment_id: str) -> None:
    """A healthy worker, until the experiment has ended or is paused."""
    worker = Worker(settings, Queue.CPU)

    def watch() -> None:
        wait_until(lambda: status(database, experiment_id) in ("succeeded", "paused", "failed"))
        worker.stopping.set()

    threading.Thread(target=watch).start()
    worker.run_locally()
    worker.database.close()


def leave_a_lost_run(database: Database) -> None:
    """A claim whose worker is gone."""
    with database.transaction() as session:
        assert start_next(session, lease_s=0) is not None


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
@pytest.mark.parametrize("step", STEPS)
def test_exit_at_a_step(
    quick: Settings, step: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a commit the database itself undoes the step, so the quick tests exit after it."""
    database = Database(quick.url)
    with database.transaction() as session:
        made = stored.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
    assert made is not None
    if step in BACKGROUND:
        leave_a_lost_run(database)
    failing = fail(quick, step, when)
    if step == "release":
        wait_until(lambda: status(database, made.id) == "running")
        with database.transaction() as session:
            states.request(session, made.id, DesiredState.PAUSE)
    failing.join(60)
    assert failing.exitcode == EXIT
    check_so_far = check(database, {made.id: RECORDS}, settled=False)
    assert check_so_far.clean, str(check_so_far)
    monkeypatch.setattr(Slot, "new_runner", lambda self: stub())
    monkeypatch.setattr(recording, "BATCH_RECORDS", 1)
    monkeypatch.setattr(compaction, "MANY", 2)
    monkeypatch.setattr(compaction, "MANY_AT_END", 2)
    recover(quick, database, made.id)
    if step == "release":
        assert status(database, made.id) == "paused"
        with database.transaction() as session:
            states.request(session, made.id, DesiredState.RUN)
        recover(quick, database, made.id)
    assert status(database, made.id) == "succeeded"
    counts = check(database, {made.id: RECORDS})
    if (step, when) != ("finish", "after"):  # there it exits before it merges
        with database.snapshot() as session:
            assert session.scalar(select(func.count()).select_from(Block)) == 2, "they are merged"
    database.close()
    assert counts.clean, str(counts)


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_api_exits_around_its_commit(quick: Settings, when: str) -> None:
    """A caller that got no answer sends the request again under its key: one experiment."""
    failing = PROCESSES.Process(target=failing_worker.submit, args=(quick, when))
    failing.start()
    failing.join(60)
    assert failing.exitcode == EXIT
    database = Database(quick.url)
    for _ in range(2):
        submission = Submission.model_validate({"spec": ppca_spec()})
        stored.sent(database, quick, submission)
        with database.snapshot() as session:
            assert len(page_of(session, 1, Wanted(), limit=10).items) == 1
    database.close()


SHORT = {**TRAINING, "train": {**TRAINING["train"], "epochs": 100, "curve_at": [0, 50]}}


@pytest.fixture(scope="module")
def expected() -> list[Record]:
    return undisturbed_records(SHORT)


@pytest.mark.parametrize("at", SAVE_STEPS)
def test_the_runner_exits_while_it_saves(at: str, tmp_path: Path, expected: list[Record]) -> None:
    """A checkpoint is complete or missing: a resumed run ends with the records of an undisturbed
    one."""
    order = {"spec": SHORT, "checkpoint_dir": str(tmp_path / "checkpoints"),
             "work_dir": str(tmp_path / "work")}  # fmt: skip
    output = tmp_path / "records.ndjson"
    given: dict[int, Any] = {}
    for step, status, every_s in ((at, EXIT, 0.02), (None, COMPLETE, 60.0)):
        arguments = ({**order, "save_every_s": every_s}, output, step)
        runner = PROCESSES.Process(target=failing_runner.main, args=arguments)
        runner.start()
        runner.join(60)
        assert runner.exitcode == status
        records = [json.loads(line) for line in output.read_text().splitlines()]
        numbered = [record for record in records if record["seq"] is not None]
        for record in numbered:
            assert given.setdefault(record["seq"], record) == record
    assert numbered[0]["seq"] > 1  # the second run went on from where the first was saved
    assert [given[seq] for seq in sorted(given)] == expected
