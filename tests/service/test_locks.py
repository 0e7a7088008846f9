"""Order of the locks of requests, on PostgreSQL: whom a waiting request holds up, and whom not."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text, update

from service.app import create_app
from service.db.engine import Database
from service.experiments.models import Experiment, Held
from service.fair_share import FairShare
from service.queue import holds, quota
from service.settings import Settings
from service.sweeps import store as sweeps
from service.sweeps.models import Sweep
from service.vocabulary import Status
from service.webhooks.routes import MAX_WEBHOOKS
from tests.support import stored
from tests.support.locks import wait_for_waiting
from tests.support.ppca_spec import ppca_spec
from worker.slot import Slot


@pytest.fixture
def api(lab: Settings) -> Iterator[TestClient]:
    headers = {"Authorization": f"Bearer {lab.key_file.read_text().strip()}"}
    with TestClient(create_app(lab), headers=headers) as client:
        yield client


@pytest.fixture
def database(lab: Settings) -> Iterator[Database]:
    with closing(Database(lab.url, connections=4)) as opened:
        yield opened


def test_a_change_of_a_sweep_locks_its_owner_before_its_runs(
    api: TestClient, database: Database
) -> None:
    """Heartbeats would wait with it. A change of an experiment locks in this order, too."""
    body = {"spec": ppca_spec(), "grid": {"data.seed": [1, 2]}}
    path = api.post("/v1/sweeps", json=body).json()["urls"]["self"]
    changes = {"visibility": "lab", "priority": 1}
    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as session:
            quota.lock(session, 1)
            changed = pool.submit(api.patch, path, json=changes)
            wait_for_waiting(database, 1)
            free = select(Experiment.id).with_for_update(skip_locked=True)
            assert len(session.scalars(free).all()) == 2
        assert changed.result().json()["visibility"] == "lab"


def test_a_claim_does_not_wait_for_a_request_that_has_locked_an_experiment(
    api: TestClient, lab: Settings, database: Database
) -> None:
    """The request may hang. The next experiment is claimed."""
    first, second = (
        api.post("/v1/experiments", json={"spec": ppca_spec(), "cache": False}).json()["id"]
        for _ in range(2)
    )
    slot = Slot(database, lab, "w")
    with database.transaction() as session:
        session.execute(update(Experiment).where(Experiment.id == first).values(priority=1))
        claim = slot.claim()
        assert claim is not None
        assert claim.experiment_id == second
        assert slot.claim() is None
    claim = slot.claim()
    assert claim is not None
    assert claim.experiment_id == first


def test_points_added_while_their_sweep_gets_a_limit_keep_it(
    api: TestClient, database: Database
) -> None:
    """The request that adds them has read the sweep before, and waits for its row."""
    made = api.post("/v1/sweeps", json={"spec": ppca_spec(), "grid": {"data.seed": [1, 2]}})
    path = made.json()["urls"]
    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as session:
            sweep = session.scalars(select(Sweep)).one()
            sweeps.change(session, sweep, {"concurrency": 1}, FairShare())
            holds.change_limit(session, sweep)
            more = {"grid": {"data.seed": [3, 4]}}
            added = pool.submit(api.post, path["points"], json=more)
            wait_for_waiting(database, 1)
        assert added.result().status_code == 202
    with database.snapshot() as session:
        free = select(Experiment.id).where(Experiment.held == Held.NOT)
        assert len(session.scalars(free).all()) == 1


def test_a_retry_and_a_change_of_its_sweep_do_not_wait_for_each_other(
    api: TestClient, database: Database
) -> None:
    """The retry has locked their owner and refers to the sweep; the change has locked the sweep and
    waits for the owner."""
    body = {"spec": ppca_spec(), "list": [{"data.seed": 1}]}
    path = api.post("/v1/sweeps", json=body).json()["urls"]
    api.post(path["cancel"])
    with database.snapshot() as session:
        old = session.scalars(select(Experiment.id)).one()
    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as session:
            quota.lock(session, 1)
            changed = pool.submit(api.patch, path["self"], json={"note": "longer"})
            wait_for_waiting(database, 1)
            stored.retry(session, session.get_one(Experiment, old))
        assert changed.result().status_code == 200


def test_a_change_of_a_sweep_locks_the_runs_that_differ_in_the_order_of_their_ids(
    api: TestClient, database: Database
) -> None:
    """Requests that cancel them lock them in this order: another one is a deadlock."""
    body = {"spec": ppca_spec(), "grid": {"data.seed": [1, 2, 3]}}
    path = api.post("/v1/sweeps", json=body).json()["urls"]["self"]
    with database.transaction() as session:
        first, second, third = session.scalars(select(Experiment.id).order_by(Experiment.id))
        change = update(Experiment).values(visibility="lab")
        session.execute(change.where(Experiment.id == third))
    with database.transaction() as session:  # its row is the last of the table and its indexes now
        ended = update(Experiment).where(Experiment.id == first)
        session.execute(ended.values(status=Status.SUCCEEDED))
    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as session:
            session.get_one(Experiment, third, with_for_update=True)
            session.get_one(Experiment, second, with_for_update=True)
            changed = pool.submit(api.patch, path, json={"visibility": "lab"})
            wait_for_waiting(database, 1)
            with database.transaction() as other:
                free = select(Experiment.id).with_for_update(skip_locked=True)
                assert other.scalars(free).all() == []  # the first is locked
        assert changed.result().status_code == 200
    with ThreadPoolExecutor(1) as pool, database.transaction() as session:
        session.get_one(Experiment, second, with_for_update=True)
        same = pool.submit(api.patch, path, json={"visibility": "lab"})
        assert same.result(60).status_code == 200  # all have it: none is locked


def test_two_requests_at_once_do_not_add_the_last_webhook_twice(
    api: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(_: int) -> int:
        return api.post("/v1/webhooks", json={"url": "https://example.org/"}).status_code

    assert {add(i) for i in range(MAX_WEBHOOKS - 1)} == {201}
    with ThreadPoolExecutor(2) as pool:
        with database.transaction() as session:
            session.execute(text("LOCK TABLE webhooks IN SHARE MODE"))
            both = [pool.submit(add, i) for i in range(2)]
            wait_for_waiting(database, 2)
        assert sorted(one.result() for one in both) == [201, 409]
