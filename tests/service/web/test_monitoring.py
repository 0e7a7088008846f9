"""Metrics for Prometheus and pages, from a known history."""

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event, func, insert, select, text, update
from sqlalchemy.orm import Session

from service.app import create_app
from service.db.engine import Database, now
from service.experiments import deletion
from service.experiments.models import Attempt, Experiment, Queue, Status, Tally
from service.experiments.schemas import Submission
from service.queue import lease, workers
from service.queue.lease import Claim, FailureCause
from service.queue.workers import Vitals
from service.records import statistics
from service.settings import Settings
from service.workers.models import Worker
from tests.support import stored
from tests.support.ppca_spec import ppca_spec
from tests.support.starting import start_next

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
    two attempts lost; an idle CPU worker, a busy GPU worker and a silent one. Return the running
    experiment."""
    database: Database = api.app.state.database  # type: ignore[attr-defined]
    with database.transaction() as session:
        for worker, name in ((IDLE, Queue.CPU), (BUSY, Queue.GPU), ("gone:1", Queue.CPU)):
            workers.beat(session, worker, Vitals("host", name, 10**9))
        silent = update(Worker).where(Worker.id == "gone:1")
        session.execute(silent.values(heartbeat_at=now() - 3600))
        lease.finish(session, _run(session, started_s=30), Status.SUCCEEDED)
        for kind in ("oom", "error", "error"):
            cause = FailureCause(kind, "why")
            lease.finish(session, _run(session), Status.FAILED, cause)
        lease.finish(session, _run(session), Status.CANCELLED)
        lost = _run(session)
        assert lease.mark_lost(session, lost, max_lost=1) == Status.QUEUED
        again = start_next(session, IDLE, lease_s=LEASE_S)
        assert again is not None
        assert lease.mark_lost(session, again, max_lost=1) == Status.FAILED
        running = _run(session)
        for _ in range(2):
            stored.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
        aged = update(Experiment).where(Experiment.status == Status.QUEUED)
        session.execute(aged.values(created_at=now() - 100))
    return running.experiment_id


def _run(session: Session, started_s: float = 0.0) -> Claim:
    """Submit and start; it waited 10 s and began `started_s` ago."""
    stored.submit(session, 1, Submission.model_validate({"spec": ppca_spec()}))
    claim = start_next(session, BUSY, lease_s=LEASE_S)
    assert claim is not None
    began = now() - started_s
    session.execute(
        update(Experiment)
        .where(Experiment.id == claim.experiment_id)
        .values(started_at=began, created_at=began - 10)
    )
    return claim


def scrape(
    api: TestClient, headers: dict[str, str] | None = None
) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and the values of its labels, in the order of the labels' names."""
    answer = api.get("/metrics", headers=headers)
    assert answer.status_code == 200
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_metrics_of_an_empty_lab(api: TestClient) -> None:
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
        "queued": 2, "running": 1, "paused": 0,
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


@pytest.mark.usefixtures("history")
def test_counters_outlive_experiments_and_folding(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a purge nor the reaper's folding changes a counter; the gauges count all rows,
    including those from before the triggers and those inserted as ended."""
    before = scrape(api)
    database: Database = api.app.state.database  # type: ignore[attr-defined]
    monkeypatch.setattr(statistics, "FOLD_AT", 3)
    with database.transaction() as session:
        ended = session.scalars(select(Experiment.id).where(Experiment.status == "failed")).all()
        session.execute(update(Experiment).values(deleted_at=now() - 1))
        session.execute(update(Attempt).values(folded=True))
        assert all(deletion.purge(session, one) for one in ended)
        spec, like = ppca_spec(), {"owner_id": 1, "tags": [], "priority": 0}
        session.execute(insert(Experiment), [{"id": "a", "spec": spec, "status": "failed",
                                              "failure_kind": "oom", **like}])  # fmt: skip
        rows = select(func.count(Tally.id))
        assert (session.scalar(rows) or 0) > 6
        statistics.fold(session)
        assert session.scalar(rows) == 5, "succeeded, cancelled, oom, error, lost"
    after = scrape(api)
    counted = ("mpt_experiments", "mpt_failures", "mpt_leases", "mpt_wait", "mpt_run_seconds")
    kept = {key for key in before if key[0].startswith(counted)}
    changed = {key: (before[key], after[key]) for key in kept if before[key] != after[key]}
    assert changed == {
        ("mpt_experiments", ("failed",)): (4, 1),
        ("mpt_failures_total", ("oom",)): (1, 2),
    }


def test_a_scrape_reads_no_experiment_that_has_ended(api: TestClient, history: str) -> None:
    """For any number of experiments. PostgreSQL's plans give the number of rows that each statement
    read."""
    database: Database = api.app.state.database  # type: ignore[attr-defined]
    spec = json.dumps(ppca_spec())
    numbers = "SELECT column1 AS i FROM (VALUES " + ",".join(f"({i})" for i in range(3000)) + ")"
    with database.transaction() as session:
        session.execute(
            text(
                "INSERT INTO experiments (id, owner_id, tags, priority, spec, device, family, "
                "status, desired_state, attempt, lost, created_at, started_at, "
                "finished_at, last_seq, held) SELECT 'e' || i, 1, '[]', 0, :spec, 'cpu', 'ppca', "
                f"'succeeded', 'run', 0, 0, 1, 2, 3, 0, '' FROM ({numbers}) AS n"
            ),
            {"spec": spec},
        )
    with database.transaction() as session:
        statistics.fold(session)
        session.execute(text("ANALYZE"))
    statements = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        statements.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    assert scrape(api)["mpt_experiments", ("succeeded",)] == 3001
    event.remove(database.engine, "before_cursor_execute", note)
    read = [one for one in statements if "experiments" in one[0] or "tallies" in one[0]]
    assert len(read) >= 4
    explain = "EXPLAIN QUERY PLAN" if database.engine.dialect.name == "sqlite" else "EXPLAIN"
    with database.engine.connect() as connection:
        for statement, parameters in read:
            plan = connection.exec_driver_sql(f"{explain} {statement}", parameters).fetchall()
            for line in map(str, plan):
                assert not re.search("SCAN experiments|Seq Scan on experiments", line), statement


def test_the_gpu_memory_of_each_run(api: TestClient, history: str) -> None:
    database: Database = api.app.state.database  # type: ignore[attr-defined]
    with database.transaction() as session:
        for worker in (IDLE, BUSY):
            has = Vitals("host", Queue.GPU, 1, gpu_uuid="GPU-1", gpu_memory_ours=5 * 10**9)
            workers.beat(session, worker, has)
    assert shown_run(api) == history


def shown_run(api: TestClient, headers: dict[str, str] | None = None) -> str:
    (run, gpu, worker), memory = next(
        (labels, value)
        for (name, labels), value in scrape(api, headers).items()
        if "gpu_memory" in name
    )
    assert (gpu, worker, memory) == ("GPU-1", BUSY, 5e9)
    return run


def test_metrics_show_ids_of_runs_to_their_readers_and_to_prometheus(
    api: TestClient, history: str
) -> None:
    database: Database = api.app.state.database  # type: ignore[attr-defined]
    with database.transaction() as session:
        has = Vitals("host", Queue.GPU, 1, gpu_uuid="GPU-1", gpu_memory_ours=5 * 10**9)
        workers.beat(session, BUSY, has)
    ann, prometheus = key_of(api, "ann"), key_of(api, "prometheus", scopes=["metrics"])
    assert (shown_run(api, ann), shown_run(api, prometheus)) == ("", history)
    assert api.patch(f"/v1/experiments/{history}", json={"visibility": "lab"}).is_success
    assert shown_run(api, ann) == history


def key_of(api: TestClient, name: str, **beside: Any) -> dict[str, str]:
    """Return the headers of a new member."""
    assert api.post("/v1/users", json={"name": name}).status_code == 201
    key = api.post(f"/v1/users/{name}/keys", json=beside).json()["key"]
    return {"Authorization": f"Bearer {key}"}


def test_an_expired_lease_without_a_reaper(api: TestClient, history: str) -> None:
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


@pytest.mark.usefixtures("history")
def test_workers_that_see_a_full_store(api: TestClient) -> None:
    def full() -> tuple[float, list[bool]]:
        items = api.get("/v1/workers").json()["items"]
        return scrape(api)["mpt_workers_store_full", ()], [one["store_full"] for one in items]

    assert full() == (0, [False, False])
    database: Database = api.app.state.database  # type: ignore[attr-defined]
    with database.transaction() as session:
        workers.beat(session, IDLE, Vitals("host", Queue.CPU, 1, store_full=True))
    assert full() == (1, [True, False])


def test_workers(api: TestClient, history: str) -> None:
    idle, busy = api.get("/v1/workers").json()["items"]
    assert (idle["id"], idle["queue"], idle["experiment_id"]) == (IDLE, "cpu", None)
    assert (busy["id"], busy["queue"], busy["experiment_id"]) == (BUSY, "gpu", history)
    assert idle["gpu"] is None
    assert 0 <= idle["silent_s"] < 30
    has = Vitals("host", Queue.GPU, 1, gpu_number=3, gpu_memory_ours=5 * 10**9)
    with api.app.state.database.transaction() as session:  # type: ignore[attr-defined]
        workers.beat(session, BUSY, has)
    idle, busy = api.get("/v1/workers").json()["items"]
    assert (idle["gpu_number"], idle["gpu_memory_ours"]) == (None, None)
    assert (busy["gpu_number"], busy["gpu_memory_ours"]) == (3, 5 * 10**9)


@pytest.mark.parametrize("path", ["/metrics", "/v1/workers"])
def test_a_key_is_needed(api: TestClient, path: str) -> None:
    assert api.get(path, headers={"Authorization": ""}).status_code == 401
