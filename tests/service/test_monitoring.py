"""What Prometheus and people see of a history that is known."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import update
from sqlalchemy.orm import Session

from service import workers
from service.database import Database, now
from service.experiments import lease, store
from service.experiments.dispatch import dispatch_next
from service.experiments.lease import Claim, FailureCause
from service.experiments.models import Experiment, Queue, Status
from service.experiments.schemas import Submission
from service.main import create_app
from service.settings import Settings
from service.workers import Vitals
from tests.support.ppca_spec import ppca_spec

LEASE_S = 60.0
IDLE, BUSY = "host:1", "host:2"


@pytest.fixture(params=["sqlite", "postgresql"])
def api(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    """A client of the service on either database."""
    fixture = "settings" if request.param == "sqlite" else "lab"
    settings: Settings = request.getfixturevalue(fixture)
    key = settings.key_file.read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    with TestClient(create_app(settings), headers=headers) as client:
        yield client


@pytest.fixture
def history(api: TestClient) -> str:
    """Two queued, one running, one succeeded, one failed for each of three kinds, one cancelled,
    two attempts lost; an idle CPU worker, a busy GPU worker and a silent one. Gives what runs."""
    database: Database = api.app.state.database  # type: ignore[attr-defined]
    with database.transaction() as session:
        for worker, name in ((IDLE, Queue.CPU), (BUSY, Queue.GPU), ("gone:1", Queue.CPU)):
            workers.beat(session, worker, Vitals("host", name, 10**9))
        silent = update(workers.Worker).where(workers.Worker.id == "gone:1")
        session.execute(silent.values(heartbeat_at=now() - 3600))
        lease.finish(session, _run(session, started_s=30), Status.SUCCEEDED)
        for kind in ("oom", "error", "error"):
            cause = FailureCause(kind, "why")
            lease.finish(session, _run(session), Status.FAILED, cause)
        lease.finish(session, _run(session), Status.CANCELLED)
        lost = _run(session)
        assert lease.mark_lost(session, lost, max_lost=1) == Status.QUEUED
        dispatch = dispatch_next(session)
        assert dispatch is not None
        again = lease.claim(
            session, dispatch.experiment_id, dispatch.dispatch_no, worker=IDLE, lease_s=LEASE_S
        )
        assert again is not None
        assert lease.mark_lost(session, again, max_lost=1) == Status.FAILED
        running = _run(session)
        for _ in range(2):
            store.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
        aged = update(Experiment).where(Experiment.status == Status.QUEUED)
        session.execute(aged.values(created_at=now() - 100))
    return running.experiment_id


def _run(session: Session, started_s: float = 0.0) -> Claim:
    """Submit, dispatch and claim; it waited 10 s and began `started_s` ago."""
    store.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
    dispatch = dispatch_next(session)
    assert dispatch is not None
    claim = lease.claim(
        session, dispatch.experiment_id, dispatch.dispatch_no, worker=BUSY, lease_s=LEASE_S
    )
    assert claim is not None
    began = now() - started_s
    session.execute(
        update(Experiment)
        .where(Experiment.id == claim.experiment_id)
        .values(started_at=began, created_at=began - 10)
    )
    return claim


def scrape(api: TestClient) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and the values of its labels, in the order of the labels' names."""
    answer = api.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics_of_nothing(api: TestClient) -> None:
    found = scrape(api)
    assert found["mpt_queue_oldest_seconds", ()] == 0
    assert found["mpt_wait_seconds_count", ()] == 0
    assert found["mpt_leases_lost_total", ()] == 0
    assert found["mpt_workers", ("false", "cpu")] == 0


@pytest.mark.usefixtures("history")
def test_metrics_of_a_history(api: TestClient) -> None:
    found = scrape(api)
    by_status = {labels[0]: n for (name, labels), n in found.items() if name == "mpt_experiments"}
    assert by_status == {
        "queued": 2, "dispatched": 0, "running": 1, "paused": 0,
        "succeeded": 1, "failed": 4, "cancelled": 1,
    }  # fmt: skip
    failures = {labels: n for (name, labels), n in found.items() if name == "mpt_failures_total"}
    assert failures == {("oom",): 1, ("error",): 2, ("lost",): 1}
    assert found["mpt_leases_lost_total", ()] == 2
    assert found["mpt_queue_oldest_seconds", ()] == pytest.approx(100, abs=5)
    assert found["mpt_wait_seconds_count", ()] == 7
    assert found["mpt_wait_seconds_sum", ()] == pytest.approx(70, abs=1)
    assert found["mpt_run_seconds_count", ()] == 6
    assert found["mpt_run_seconds_sum", ()] == pytest.approx(30, abs=5)
    assert found["mpt_leases_expired", ()] == 0
    assert found["mpt_workers", ("false", "cpu")] == 1
    assert found["mpt_workers", ("true", "cpu")] == 0
    assert found["mpt_workers", ("true", "gpu")] == 1


def test_a_lease_that_no_reaper_saw_to(api: TestClient, history: str) -> None:
    database: Database = api.app.state.database  # type: ignore[attr-defined]
    with database.transaction() as session:
        expired = update(Experiment).where(Experiment.id == history)
        session.execute(expired.values(lease_expires_at=now() - 1))
    assert scrape(api)["mpt_leases_expired", ()] == 1


def test_the_disk_of_the_store(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def disk_usage(path: object) -> SimpleNamespace:
        seen.append(path)
        return SimpleNamespace(total=1000, used=900, free=100)

    monkeypatch.setattr("shutil.disk_usage", disk_usage)
    found = scrape(api)
    assert (found["mpt_store_size_bytes", ()], found["mpt_store_free_bytes", ()]) == (1000, 100)
    assert seen == [api.app.state.settings.store]  # type: ignore[attr-defined]


def test_workers(api: TestClient, history: str) -> None:
    idle, busy = api.get("/v1/workers").json()["items"]
    assert (idle["id"], idle["queue"], idle["experiment_id"]) == (IDLE, "cpu", None)
    assert (busy["id"], busy["queue"], busy["experiment_id"]) == (BUSY, "gpu", history)
    assert idle["gpu"] is None
    assert 0 <= idle["silent_s"] < 30


@pytest.mark.parametrize("path", ["/metrics", "/v1/workers"])
def test_a_key_is_needed(api: TestClient, path: str) -> None:
    assert api.get(path, headers={"Authorization": ""}).status_code == 401
