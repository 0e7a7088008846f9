"""Turns: who has the slots, who may displace their runs, and promised latest starts."""

import time
from collections.abc import Mapping
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from service.accounts import accounts, projects
from service.accounts.users import ensure_key
from service.db.engine import Database
from service.experiments.models import Attempt, Experiment, Queue, Usage
from service.fair_share import HOUR_S, FairShare
from service.queue import drains, workers
from service.queue.position import queue_positions
from service.queue.schemas import QueuePosition
from service.queue.snapshot import QueueSnapshots
from service.queue.workers import Vitals
from service.settings import Settings
from service.vocabulary import Role, Visibility
from service.workers.models import Worker
from tests.support.ppca_spec import ppca_spec
from tests.support.promises import promised
from tests.support.shared_lab import WITHIN_S
from tests.support.sliced_lab import SlicedLab
from tests.support.starting import start_next
from tests.support.stored import change

SLICE_S = 4 * HOUR_S
LONG_S = 1000 * HOUR_S
LOOK_S = 300.0


def lab_of(database: Database, **settings: Any) -> SlicedLab:
    fair_share = FairShare(**{"slice_s": SLICE_S, "spare_slots": 0, **settings})
    return SlicedLab(database, fair_share, cpus=1, look_s=LOOK_S)


def position(lab: SlicedLab, experiment_id: str, reader_id: int | None = None) -> QueuePosition:
    with lab.database.snapshot() as session:
        rows = [session.get_one(Experiment, experiment_id)]
        snapshots = QueueSnapshots(WITHIN_S, lab.fair_share)
        return queue_positions(session, rows, snapshots, reader_id)[experiment_id]


def latest_s(lab: SlicedLab, experiment_id: str) -> float | None:
    """Return the promised latest start in seconds of the lab."""
    at = position(lab, experiment_id).latest_start
    return None if at is None else at.timestamp() - lab.began


def test_a_new_user_starts_at_the_latest_when_a_slice_ends(either: Database) -> None:
    """The promise names the run that gives way, and comes true."""
    lab = lab_of(either)
    ann, bob = lab.user("ann"), lab.user("bob")
    lab.submit(ann, 1, LONG_S)
    lab.run(HOUR_S)
    first, second = lab.submit(bob, 2, LONG_S)
    until = latest_s(lab, first)
    assert until is not None
    assert SLICE_S <= until <= SLICE_S + 1200
    promise = position(lab, first).promise or ""
    assert promise.startswith("within 3 h")
    assert promise.endswith("ann's run on host gives way by then")
    assert latest_s(lab, second) is None
    lab.run(until + LOOK_S - lab.time)
    assert lab.starts[-1][2] == first


def test_users_with_less_usage_come_before(either: Database) -> None:
    lab = lab_of(either)
    ann, bob, carol = (lab.user(name) for name in ("ann", "bob", "carol"))
    lab.submit(ann, 1, LONG_S)
    lab.run(HOUR_S)
    (carols,) = lab.submit(carol, 1, LONG_S)
    (bobs,) = lab.submit(bob, 1, LONG_S)
    assert latest_s(lab, carols) is not None
    assert latest_s(lab, bobs) is None
    with either.transaction() as session:
        session.add(Usage(owner_id=carol, charged_s=60.0, settled_s=60.0, as_of=lab.clock.now))
    assert latest_s(lab, carols) is None
    assert latest_s(lab, bobs) is not None


def test_a_run_that_may_end_soon_is_waited_for(database: Database) -> None:
    lab = lab_of(database)
    ann, bob = lab.user("ann"), lab.user("bob")
    lab.submit(ann, 1, 1.1 * SLICE_S)
    lab.run(HOUR_S)
    (waits,) = lab.submit(bob, 1, LONG_S)
    until = latest_s(lab, waits)
    assert until is not None
    assert 1.2 * SLICE_S <= until <= 1.2 * SLICE_S + 1200
    lab.run(until - lab.time)
    assert lab.starts[-1][2] == waits


def test_nothing_is_promised_that_is_not_certain(either: Database) -> None:
    """The words say why, to the owner and to other readers."""
    lab = lab_of(either)
    ann, bob = lab.user("ann"), lab.user("bob")
    with either.transaction() as session:
        session.add(Usage(owner_id=bob, charged_s=1e6, settled_s=1e6, as_of=lab.clock.now))
    lab.submit(ann, 1, LONG_S)
    lab.run(HOUR_S)
    (waits,) = lab.submit(bob, 1, LONG_S)
    (second,) = lab.submit(ann, 1, LONG_S)
    assert position(lab, waits).latest_start is position(lab, second).latest_start is None
    assert "your usage" in (position(lab, waits).promise or "")
    assert "its owner's usage" in (position(lab, waits, ann).promise or "")
    assert "another run" in (position(lab, second).promise or "")


def test_without_slices_nothing_is_promised(database: Database) -> None:
    lab = lab_of(database, slice_s=0)
    lab.submit(lab.user("ann"), 1, LONG_S)
    lab.run(HOUR_S)
    (waits,) = lab.submit(lab.user("bob"), 1, LONG_S)
    assert (position(lab, waits).latest_start, position(lab, waits).promise) == (None, None)


@pytest.mark.parametrize("columns", [{"family": "vae"}, {"memory_bytes": 2**40}])
def test_nothing_is_promised_where_family_or_memory_is_missing(
    database: Database, columns: Mapping[str, Any]
) -> None:
    lab = lab_of(database)
    with database.transaction() as session:
        pool = [{"id": "host", "total": 2**41, "free": 2**39}]
        vitals = Vitals("host", Queue.CPU, 2**39, memory_pools=pool, families=["ppca"])
        workers.beat(session, "cpu0", vitals)
    lab.submit(lab.user("ann"), 1, LONG_S)
    lab.run(HOUR_S)
    (waits,) = lab.submit(lab.user("bob"), 1, LONG_S)
    assert latest_s(lab, waits) is not None
    change(database, waits, **columns)
    assert latest_s(lab, waits) is None


@pytest.mark.parametrize(
    "columns",
    [
        {"progress_at": None, "progress_eta_s": None},
        {"priority": 150},
        {"gives_way_to": "somebody else's"},
    ],
)
def test_nothing_is_promised_if_the_run_may_not_give_way(
    database: Database, columns: Mapping[str, Any]
) -> None:
    lab = lab_of(database)
    (long,) = lab.submit(lab.user("ann", may_jump=True), 1, LONG_S)
    lab.run(HOUR_S)
    (waits,) = lab.submit(lab.user("bob"), 1, LONG_S)
    assert latest_s(lab, waits) is not None
    change(database, long, **columns)
    assert latest_s(lab, waits) is None


def test_nothing_is_promised_on_a_worker_that_is_reserved_or_drained_soon(
    database: Database,
) -> None:
    lab = lab_of(database)
    lab.submit(lab.user("ann"), 1, LONG_S)
    lab.run(HOUR_S)
    (waits,) = lab.submit(lab.user("bob"), 1, LONG_S)
    for reserved_for, latest_is_known in (("somebody else's", False), (waits, True)):
        with database.transaction() as session:
            session.execute(update(Worker).values(reserved_for=reserved_for))
        assert (latest_s(lab, waits) is not None) == latest_is_known
    with database.transaction() as session:
        drains.drain(session, "host", "admin", starts_in_s=100 * HOUR_S)
    assert latest_s(lab, waits) is None


@pytest.mark.parametrize("seed", [1, 29])
def test_promises_of_a_random_lab_are_kept(database: Database, seed: int) -> None:
    found = promised(database, seed, days=0.75)
    assert found.broken == []
    assert found.kept


class Lab:
    """A lab with one CPU worker. Ann's run has it and is asked to give way to Bob's."""

    def __init__(self, api: TestClient, database: Database, settings: Settings):
        self.api, self.database = api, database
        self.keys = {}
        for name, role in {"ann": Role.MEMBER, "bob": Role.MEMBER, "eve": Role.MEMBER,
                           "vic": Role.VIEWER}.items():  # fmt: skip
            file = settings.store / name
            with database.transaction() as session:
                ensure_key(session, name, file, role=role)
            self.keys[name] = {"Authorization": f"Bearer {file.read_text().strip()}"}
        with database.transaction() as session:
            workers.beat(session, "node:1", Vitals("node", Queue.CPU, 2**34))
        self.anns = self.submit("ann")
        with database.transaction() as session:
            assert start_next(session, "node:1") is not None
            began = update(Attempt).values(started_at=time.time() - HOUR_S)
            session.execute(began)
        self.bobs = self.submit("bob")
        change(database, self.anns, gives_way_to=self.bobs)

    def submit(self, name: str) -> str:
        body = {"spec": ppca_spec(), "name": f"secret of {name}", "cache": False}
        made = self.api.post("/v1/experiments", json=body, headers=self.keys[name])
        return str(made.json()["id"])

    def slot(self, name: str) -> dict[str, Any]:
        """Return the slot as a user sees it."""
        (slot,) = self.api.get("/v1/queue", headers=self.keys[name]).json()["slots"]
        return dict(slot)


@pytest.fixture
def shown(api: TestClient, database: Database, settings: Settings) -> Lab:
    return Lab(api, database, settings)


def test_everybody_sees_whose_run_has_a_slot(shown: Lab) -> None:
    for name in shown.keys:
        slot = shown.slot(name)
        assert (slot["owner"], slot["displaced_by"]) == ("ann", ["bob"])
        assert slot["gives_way_to"].startswith("bob's ")
        assert slot["since"] < slot["keeps_until"]


@pytest.mark.parametrize("name", ["eve", "vic", "bob"])
def test_no_title_or_id_of_a_private_run_is_shown(shown: Lab, name: str) -> None:
    answer = shown.api.get("/v1/queue", headers=shown.keys[name])
    assert "secret of ann" not in answer.text
    assert shown.anns not in answer.text
    if name != "bob":
        assert "secret of bob" not in answer.text
        assert shown.bobs not in answer.text


def test_titles_are_shown_to_those_who_may_read_the_runs(shown: Lab) -> None:
    assert shown.slot("ann")["title"] == "secret of ann"
    assert shown.slot("ann")["gives_way_to"] == "bob's run"
    assert shown.slot("bob")["gives_way_to"] == "bob's secret of bob"
    change(shown.database, shown.anns, visibility=Visibility.LAB)
    slot = shown.slot("vic")
    assert (slot["title"], slot["experiment_id"]) == ("secret of ann", shown.anns)


def test_only_readers_of_a_run_see_its_project(shown: Lab) -> None:
    with shown.database.transaction() as session:
        members = [accounts.find(session, name) for name in ("ann", "bob")]
        project = projects.add(session, "vision")
        assert project is not None
        projects.change_members(session, project, [one for one in members if one is not None], [])
        project_id = project.id
        session.execute(update(Attempt).values(project_id=project_id))
    change(shown.database, shown.anns, project_id=project_id, visibility=Visibility.PROJECT)
    body = {"spec": ppca_spec(), "project": "vision"}  # after which the queue is read again
    assert shown.api.post("/v1/experiments", json=body, headers=shown.keys["bob"]).is_success
    assert shown.slot("bob")["title"] == "secret of ann"
    assert [shown.slot(name)["project"] for name in ("ann", "bob")] == ["vision", "vision"]
    for name in ("eve", "vic"):
        answer = shown.api.get("/v1/queue", headers=shown.keys[name])
        assert answer.json()["slots"][0]["owner"] == "ann"
        assert "vision" not in answer.text


def test_an_idle_worker_has_no_run(shown: Lab) -> None:
    with shown.database.transaction() as session:
        workers.beat(session, "node:2", Vitals("node", Queue.CPU, 2**34))
    slots = shown.api.get("/v1/queue", headers=shown.keys["eve"]).json()["slots"]
    assert [slot["owner"] for slot in slots] == ["ann", None]
    with shown.database.snapshot() as session:
        assert len(session.scalars(select(Attempt)).all()) == 1
