"""Metrics for Prometheus and pages, from a known history."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from service.accounts.models import User
from service.db.engine import now
from service.experiments import deletion
from service.experiments.models import Device, Experiment, Held, Queue
from service.experiments.schemas import Submission
from service.fair_share import FairShare
from service.queue import lease, ledger, worker_samples, workers
from service.queue.lease import Claim, FailureCause
from service.queue.workers import Vitals
from service.settings import Settings
from service.vocabulary import TERMINAL, Status
from service.workers.models import Drain, Worker, WorkerSample
from tests.support import stored
from tests.support.attempts import submitted
from tests.support.callers import database_of
from tests.support.ppca_spec import ppca_spec
from tests.support.starting import start_next

LEASE_S = 60.0
IDLE, BUSY = "host:1", "host:2"


@pytest.fixture
def api(admin: TestClient) -> TestClient:
    """A client of the service on either database."""
    return admin


@pytest.fixture
def history(api: TestClient) -> str:
    """Two queued, one running, one succeeded, one failed for each of three kinds, one cancelled,
    two attempts lost; an idle CPU worker, a busy GPU worker and a silent one. Return the running
    experiment."""
    database = database_of(api)
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
    assert found["mpt_queue_oldest_seconds", ("cpu",)] == 0
    assert found["mpt_queue_oldest_seconds", ("gpu",)] == 0
    assert found["mpt_wait_seconds_count", ()] == 0
    assert found["mpt_leases_lost_total", ()] == 0
    assert found["mpt_workers", ("false", "cpu")] == 0


def test_metrics_of_a_history(api: TestClient, history: str) -> None:
    found = scrape(api)
    by_status = {labels[0]: n for (name, labels), n in found.items() if name == "mpt_experiments"}
    assert by_status == {
        "queued": 2, "running": 1, "paused": 0,
        "succeeded": 1, "failed": 4, "cancelled": 1,
    }  # fmt: skip
    failures = {labels: n for (name, labels), n in found.items() if name == "mpt_failures_total"}
    assert failures == {("oom",): 1, ("error",): 2, ("lost",): 1}
    assert found["mpt_leases_lost_total", ()] == 2
    assert found["mpt_queue_oldest_seconds", ("cpu",)] == pytest.approx(100, abs=5)
    assert found["mpt_queue_oldest_seconds", ("gpu",)] == 0
    assert found["mpt_wait_seconds_count", ()] == 7
    assert found["mpt_wait_seconds_sum", ()] == pytest.approx(70, abs=1)
    assert found["mpt_run_seconds_count", ()] == 6
    assert found["mpt_run_seconds_sum", ()] == pytest.approx(30, abs=5)
    assert found["mpt_leases_expired", ()] == 0
    assert found["mpt_workers", ("false", "cpu")] == 1
    assert found["mpt_workers", ("true", "cpu")] == 0
    assert found["mpt_workers", ("true", "gpu")] == 1
    database = database_of(api)
    with database.transaction() as session:
        expired = update(Experiment).where(Experiment.id == history)
        session.execute(expired.values(lease_expires_at=now() - 1))
    assert scrape(api)["mpt_leases_expired", ()] == 1  # no controller has ended it


@pytest.mark.usefixtures("history")
def test_neither_a_fold_nor_a_purge_changes_a_counter(api: TestClient) -> None:
    """The running experiment is counted on from its row when it ends."""
    before = scrape(api)
    database = database_of(api)
    for _ in range(2):
        with database.transaction() as session:
            ledger.fold(session, FairShare())
        assert scrape_of_experiments(api) == counted(before)
    with database.transaction() as session:
        session.execute(update(Experiment).values(deleted_at=now() - 1))
        ended = session.scalars(select(Experiment.id).where(Experiment.status.in_(TERMINAL))).all()
        assert all(deletion.purge(session, one) for one in ended)
    gone = {("mpt_experiments", (status,)): 0 for status in TERMINAL}
    assert scrape_of_experiments(api) == counted(before) | gone


def scrape_of_experiments(api: TestClient) -> Any:
    return pytest.approx(counted(scrape(api)))


def counted(samples: dict[tuple[str, tuple[str, ...]], float]) -> dict[Any, float]:
    """Return the samples of experiments and attempts."""
    names = ("mpt_experiments", "mpt_failures", "mpt_leases_lost", "mpt_wait", "mpt_run_seconds")
    return {
        key: value
        for key, value in samples.items()
        if key[0].startswith(names) and not key[0].endswith("_created")
    }


def shown_run(api: TestClient, headers: dict[str, str] | None = None) -> str:
    """Return the run that the memory of the GPU belongs to."""
    (run, gpu, worker), memory = next(
        (labels, value)
        for (name, labels), value in scrape(api, headers).items()
        if "gpu_memory" in name
    )
    assert (gpu, worker, memory) == ("GPU-1", BUSY, 5e9)
    return run


def test_the_gpu_memory_of_a_run_names_it_to_its_readers_and_to_prometheus(
    api: TestClient, history: str
) -> None:
    database = database_of(api)
    with database.transaction() as session:
        for worker in (IDLE, BUSY):
            has = Vitals("host", Queue.GPU, 1, gpu_uuid="GPU-1", gpu_memory_ours=5 * 10**9)
            workers.beat(session, worker, has)
    ann, prometheus = key_of(api, "ann"), key_of(api, "prometheus", scopes=["metrics"])
    assert [shown_run(api, one) for one in (None, ann, prometheus)] == [history, "", history]
    assert api.patch(f"/v1/experiments/{history}", json={"visibility": "lab"}).is_success
    assert shown_run(api, ann) == history


def key_of(api: TestClient, name: str, **beside: Any) -> dict[str, str]:
    """Return the headers of a new member."""
    assert api.post("/v1/users", json={"name": name}).status_code == 201
    key = api.post(f"/v1/users/{name}/keys", json=beside).json()["key"]
    return {"Authorization": f"Bearer {key}"}


def queued(api: TestClient, device: Device, ago_s: float, **columns: Any) -> str:
    """An experiment that has waited for some seconds."""
    database = database_of(api)
    experiment_id = submitted(database)
    stored.change(database, experiment_id, device=device, created_at=now() - ago_s, **columns)
    return experiment_id


def oldest(api: TestClient) -> tuple[int, int]:
    """The ages of the oldest experiments that wait for a CPU and a GPU worker, in hundreds of
    seconds."""
    found = scrape(api)
    cpu, gpu = (found["mpt_queue_oldest_seconds", (queue,)] for queue in ("cpu", "gpu"))
    return int(cpu // 100), int(gpu // 100)


def test_the_oldest_experiment_that_waits_for_a_worker(api: TestClient) -> None:
    """Neither one that is held, nor one whose owner is disabled or has as many runs as allowed, nor
    one that runs: no worker could start it."""
    database = database_of(api)
    queued(api, Device.CPU, 100)
    queued(api, Device.CPU, 200)
    queued(api, Device.CUDA, 300)
    assert oldest(api) == (2, 3)
    queued(api, Device.CPU, 400, held=Held.AFTER)
    running = {"status": Status.RUNNING, "lease_expires_at": now() + 60}
    stored.change(database, queued(api, Device.CUDA, 500), **running)
    assert oldest(api) == (2, 3)
    with database.transaction() as session:
        session.add(User(id=2, name="ann", max_running=1))
        session.add(User(id=3, name="bob", disabled_at=now()))
    queued(api, Device.CPU, 600, owner_id=2)
    assert oldest(api) == (6, 3)
    stored.change(database, queued(api, Device.CPU, 700, owner_id=2), **running)
    queued(api, Device.CPU, 800, owner_id=3)
    assert oldest(api) == (2, 3)


def test_device_auto_waits_for_the_workers_that_there_are(api: TestClient) -> None:
    """A lab without GPUs has no GPU workers to miss, nor has one without CPU workers those."""
    database = database_of(api)
    queued(api, Device.AUTO, 100)
    assert oldest(api) == (1, 0)
    with database.transaction() as session:
        workers.beat(session, BUSY, Vitals("host", Queue.GPU, 10**9))
    assert oldest(api) == (0, 1)
    with database.transaction() as session:
        workers.beat(session, IDLE, Vitals("host", Queue.CPU, 10**9))
    assert oldest(api) == (1, 1)


def test_the_disk_of_the_store(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Settings = api.app.state.settings  # type: ignore[attr-defined]
    usage = {str(settings.store): SimpleNamespace(total=1000, used=900, free=100)}
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage[str(path)])
    found = scrape(api)
    assert (found["mpt_store_size_bytes", ()], found["mpt_store_free_bytes", ()]) == (1000, 100)


def test_the_size_of_the_database(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free bytes are those of the disk of SQLite's file. The disk of a server is not visible."""
    database = database_of(api)
    before = scrape(api)
    with database.transaction() as session:
        for _ in range(100):
            submission = Submission.model_validate({"spec": ppca_spec(), "note": "n" * 10_000})
            stored.submit(session, 1, submission)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=9, free=7))
    after = scrape(api)
    grown = after["mpt_database_bytes", ()] - before["mpt_database_bytes", ()]
    assert 10**5 < grown < 10**8
    is_file = database.engine.dialect.name == "sqlite"
    assert after.get(("mpt_database_free_bytes", ())) == (7 if is_file else None)


@pytest.mark.usefixtures("history")
def test_workers_that_see_a_full_store(api: TestClient) -> None:
    def full() -> tuple[float, list[bool]]:
        items = api.get("/v1/workers").json()["items"]
        return scrape(api)["mpt_workers_store_full", ()], [one["store_full"] for one in items]

    assert full() == (0, [False, False])
    database = database_of(api)
    with database.transaction() as session:
        workers.beat(session, IDLE, Vitals("host", Queue.CPU, 1, store_full=True))
    assert full() == (1, [True, False])


@pytest.mark.usefixtures("history")
def test_an_idle_worker_that_looks_for_no_run_hangs(api: TestClient) -> None:
    database = database_of(api)
    for looked_ago_s, hangs in ((6.0, False), (60.0, True)):
        vitals = Vitals("host", Queue.CPU, 1, looked_ago_s=looked_ago_s)
        with database.transaction() as session:
            workers.beat(session, IDLE, vitals)
        shown = {worker["id"]: worker["hangs"] for worker in api.get("/v1/workers").json()["items"]}
        assert shown.pop(IDLE) == hangs
        assert not any(shown.values())


@pytest.mark.usefixtures("history")
def test_a_drained_machine(api: TestClient) -> None:
    """It is shown with its workers, which do not count as workers that start runs."""
    database = database_of(api)
    with database.transaction() as session:
        workers.beat(session, "gpu3:1", Vitals("gpu3", Queue.CPU, 1))

    def shown() -> tuple[Any, ...]:
        found = scrape(api)
        items = api.get("/v1/workers").json()["items"]
        drain_of = {one["host"]: one["drain"] for one in items}
        assert drain_of["host"] is None
        counts = found["mpt_workers", ("false", "cpu")], found["mpt_workers_drained", ("cpu",)]
        return *counts, drain_of["gpu3"]

    assert shown() == (2, 0, None)
    began = datetime.now(UTC)
    answer = api.post("/v1/drains", json={"host": "gpu3", "lasts_s": 600})
    assert answer.status_code == 201
    drain = answer.json()
    assert shown() == (1, 1, drain)
    assert (drain["host"], drain["drained_by"]) == ("gpu3", "local")
    since, hand_back_at, until = (
        datetime.fromisoformat(drain[name]) for name in ("since", "hand_back_at", "until")
    )
    assert began - timedelta(seconds=1) < since < datetime.now(UTC) + timedelta(seconds=1)
    assert (hand_back_at - since).total_seconds() == pytest.approx(300, abs=1)
    assert (until - since).total_seconds() == pytest.approx(600, abs=1)
    assert api.delete("/v1/drains/gpu3").status_code == 204
    assert shown() == (2, 0, None)
    entries = api.get("/v1/audit", params={"object_id": "gpu3"}).json()["items"]
    assert [one["action"] for one in entries] == ["host.undrained", "host.drained"]


@pytest.mark.usefixtures("history")
def test_a_planned_drain_does_not_end_one_that_has_begun(api: TestClient) -> None:
    with database_of(api).transaction() as session:
        workers.beat(session, "gpu3:1", Vitals("gpu3", Queue.CPU, 1))
    assert api.post("/v1/drains", json={"host": "gpu3"}).status_code == 201
    refused = api.post("/v1/drains", json={"host": "gpu3", "starts_in_s": 3600})
    assert (refused.status_code, refused.json()["reason"]) == (409, "wrong_state")
    assert [one["has_begun"] for one in api.get("/v1/drains").json()["items"]] == [True]


@pytest.mark.usefixtures("history")
def test_a_planned_drain(api: TestClient) -> None:
    """All readers see it. Its workers count as workers that start runs until it begins."""
    database = database_of(api)
    with database.transaction() as session:
        workers.beat(session, "gpu3:1", Vitals("gpu3", Queue.CPU, 1))

    def shown() -> tuple[Any, ...]:
        found = scrape(api)
        names = ("mpt_workers_drained", "mpt_workers_drain_planned")
        counts = found["mpt_workers", ("false", "cpu")], *(found[name, ("cpu",)] for name in names)
        items = api.get("/v1/workers").json()["items"]
        of_worker = [one["drain"] for one in items if one["host"] == "gpu3"]
        assert api.get("/v1/drains").json()["items"] == [one for one in of_worker if one]
        return *counts, *of_worker

    assert shown() == (2, 0, 0, None)
    answer = api.post("/v1/drains", json={"host": "gpu3", "starts_in_s": 3600, "lasts_s": 7200})
    assert answer.status_code == 201
    drain = answer.json()
    assert shown() == (2, 0, 1, drain)
    assert drain["hand_back_at"] == drain["starts_at"]
    assert not drain["has_begun"]
    starts_at, until = (datetime.fromisoformat(drain[name]) for name in ("starts_at", "until"))
    assert abs(starts_at - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=1)
    assert (until - starts_at).total_seconds() == pytest.approx(3600, abs=1)
    with database.transaction() as session:
        session.execute(update(Drain).values(starts_at=now() - 1))
    *counts, begun = shown()
    assert (counts, begun["has_begun"]) == ([1, 1, 0], True)
    with database.transaction() as session:
        session.execute(update(Drain).values(starts_at=now() + 1000))
    assert api.delete("/v1/drains/gpu3").status_code == 204
    assert shown() == (2, 0, 0, None)
    entries = api.get("/v1/audit", params={"object_id": "gpu3"}).json()["items"]
    assert entries[1]["details"]["starts_in_s"] == 3600


def test_a_drain_of_a_machine_that_there_is_not(api: TestClient, history: str) -> None:
    """The refusal names the machines, also those whose workers have left within a day."""
    database = database_of(api)
    with database.transaction() as session:
        for host in ("left", "drained"):
            vitals = Vitals(host, Queue.CPU, 1)
            workers.beat(session, f"{host}:1", vitals)
            worker_samples.take(session, f"{host}:1", vitals)
            workers.leave(session, f"{host}:1")
    refused = api.post("/v1/drains", json={"host": "gpu33"})
    assert refused.status_code == 404
    assert refused.json()["detail"].endswith("machines: drained, host, left")
    assert api.post("/v1/drains", json={"host": "drained"}).status_code == 201
    with database.transaction() as session:
        session.execute(delete(WorkerSample))
    refused = api.post("/v1/drains", json={"host": "left"})
    assert refused.json()["detail"].endswith("machines: drained, host")
    refused = api.delete("/v1/drains/host")
    assert refused.status_code == 404
    assert refused.json()["detail"].endswith("drained machines: drained")


@pytest.mark.parametrize(
    ("times", "pointer"),
    [
        ({"hand_back_after_s": 600, "lasts_s": 600}, "/hand_back_after_s"),
        ({"hand_back_after_s": -1}, "/hand_back_after_s"),
        ({"lasts_s": 0}, "/lasts_s"),
        ({"lasts_s": 1e9}, "/lasts_s"),
        ({"starts_in_s": -1}, "/starts_in_s"),
        ({"starts_in_s": 1e9}, "/starts_in_s"),
        ({"starts_in_s": 600, "hand_back_after_s": 599}, "/hand_back_after_s"),
        ({"starts_in_s": 600, "lasts_s": 600}, "/lasts_s"),
    ],
)
def test_times_of_a_drain_that_are_refused(
    api: TestClient, history: str, times: dict[str, float], pointer: str
) -> None:
    body = {"host": "host", **times}
    refused = api.post("/v1/drains", json=body)
    assert refused.status_code == 422
    assert [one["pointer"] for one in refused.json()["errors"]] == [pointer]


def test_workers(api: TestClient, history: str) -> None:
    idle, busy = api.get("/v1/workers").json()["items"]
    assert (idle["id"], idle["queue"], idle["experiment_id"]) == (IDLE, "cpu", None)
    assert (busy["id"], busy["queue"], busy["experiment_id"]) == (BUSY, "gpu", history)
    assert idle["gpu"] is None
    assert 0 <= idle["silent_s"] < 30
    has = Vitals("host", Queue.GPU, 1, gpu_number=3, gpu_memory_ours=5 * 10**9)
    with database_of(api).transaction() as session:
        workers.beat(session, BUSY, has)
    idle, busy = api.get("/v1/workers").json()["items"]
    assert (idle["gpu_number"], idle["gpu_memory_ours"]) == (None, None)
    assert (busy["gpu_number"], busy["gpu_memory_ours"]) == (3, 5 * 10**9)
