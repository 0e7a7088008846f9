"""Routes of workers and of metrics for Prometheus."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from http import HTTPStatus
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from service.accounts import audit
from service.accounts.users import Caller
from service.db.engine import hold_still, moment
from service.experiments import store
from service.experiments.models import DEVICES, Device, Queue
from service.fair_share import FairShare
from service.queue import drains, worker_samples, workers
from service.queue.statistics import (
    controller_last_look_s,
    expired_leases,
    oldest_waiting_s,
    statistics,
)
from service.refusals import ApiError
from service.settings import Settings
from service.vocabulary import Scope
from service.web.dependencies import (
    Admin,
    DatabaseDep,
    Reader,
    Scraper,
    SettingsDep,
)
from service.web.meters import Meters
from service.web.route import JsonBody, StrictRoute
from service.workers.models import Worker
from service.workers.schemas import (
    DrainList,
    DrainOut,
    NewDrain,
    WorkerHistory,
    WorkerList,
    WorkerOut,
    WorkerPast,
)

router = APIRouter(tags=["monitoring"], route_class=StrictRoute)

SILENT_S = 60.0
"""Maximum silence of a worker that is shown."""
STRETCHES = 72
"""Maximum number of intervals in a history."""


@router.get("/v1/workers")
def list_workers(database: DatabaseDep, user: Reader) -> WorkerList:
    """List the workers with a sign of life within a minute."""
    with database.snapshot() as session:
        found = workers.alive(session, SILENT_S)
        drained = drains.drains(session)
        running = [experiment_id for _, experiment_id, _ in found if experiment_id]
        open_ids = store.readable_ids(session, user, running)
    items = [
        WorkerOut.of(
            worker,
            busy=run is not None,
            experiment_id=run if run in open_ids else None,
            drain=DrainOut.of(drained[worker.host]) if worker.host in drained else None,
            silent_s=round(silent_s, 3),
            hangs=run is None and (worker.looked_s or 0.0) > workers.LOOKED_S,
        )
        for worker, run, silent_s in found
    ]
    return WorkerList(items=items)


@router.get("/v1/drains")
def list_drains(database: DatabaseDep, user: Reader) -> DrainList:
    """List the drains of machines that are planned or have not ended."""
    with database.snapshot() as session:
        rows = drains.drains(session).values()
    return DrainList(items=[DrainOut.of(row) for row in rows])


@router.post("/v1/drains", status_code=HTTPStatus.CREATED)
def drain_host(new: JsonBody[NewDrain], database: DatabaseDep, user: Admin) -> DrainOut:
    """Drain a machine, for example for its maintenance, or change its drain. Its workers start no
    run. Their runs have some time to end; then they save checkpoints and return to the queue. If
    the drain begins later, runs that are expected to end before still start. A machine has one
    drain at a time."""
    with database.transaction() as session:
        drained = drains.drains(session)
        if new.starts_in_s and new.host in drained and drained[new.host].has_begun:
            detail = f"{new.host} is drained now: end this drain first, or leave out starts_in_s"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        known = drains.hosts_of_a_day(session) | drained.keys()
        if new.host not in known:
            detail = f"no worker of a machine {new.host} was alive in the last day"
            raise _not_found(detail, "machines", known)
        times = new.model_dump(include={"starts_in_s", "hand_back_after_s", "lasts_s"})
        row = drains.drain(session, new.host, user.name, **times)
        audit.note(session, user, "host.drained", new.host, **times)
        return DrainOut.of(row)


@router.delete("/v1/drains/{host}", status_code=HTTPStatus.NO_CONTENT)
def undrain_host(
    host: Annotated[str, Path(max_length=200, description="Name of the machine.")],
    database: DatabaseDep,
    user: Admin,
) -> None:
    """End the drain of a machine, also before it begins: its workers start runs again."""
    with database.transaction() as session:
        if not drains.undrain(session, host):
            known = drains.drains(session).keys()
            raise _not_found(f"the machine {host} is not drained", "drained machines", known)
        audit.note(session, user, "host.undrained", host)


def _not_found(detail: str, what: str, hosts: Iterable[str]) -> ApiError:
    names = ", ".join(sorted(hosts)) or "none"
    return ApiError(HTTPStatus.NOT_FOUND, "not_found", f"{detail}; {what}: {names}")


@router.get("/v1/workers/history")
def get_worker_history(
    database: DatabaseDep,
    user: Reader,
    hours: Annotated[int, Query(ge=1, le=24, description="Hours to show.")] = 6,
) -> WorkerHistory:
    """Return how busy the workers were, and their free memory, over the last hours. It includes
    workers that have left."""
    together = -(-hours * 60 // STRETCHES)
    with database.snapshot() as session:
        last = worker_samples.last_minute(session) // together
        stretches = range(last - hours * 60 // together + 1, last + 1)
        rows = worker_samples.past(session, stretches.start * together, together)
    by_worker = groupby(rows, lambda row: row.worker_id)
    return WorkerHistory(
        stretch_s=together * worker_samples.MINUTE_S,
        at=[moment(one * together * worker_samples.MINUTE_S) for one in stretches],
        items=[_past(worker_id, list(own), stretches) for worker_id, own in by_worker],
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}}, "description": "The text format of Prometheus"}
    },
)
def metrics(
    request: Request, database: DatabaseDep, settings: SettingsDep, user: Scraper
) -> Response:
    """Return metrics for Prometheus. Figures of experiments, workers and the store come from the
    database and are the same in all API processes. Figures of requests and waits are those of the
    process that answers. A key with the scope `read` sees only the ids of runs that its user may
    read."""
    registry = CollectorRegistry()
    with database.snapshot() as session:
        hold_still(session)  # Prometheus takes a falling counter for a restarted one
        families = [*_families(session, user, settings.share), *_database(session)]
        registry.register(_Metrics([*families, *_disk(settings)]))
    meters: Meters = request.app.state.meters
    own = meters.text(request.app.state.poller.looked_at)
    return Response(generate_latest(registry) + own, media_type=CONTENT_TYPE_LATEST)


class _Metrics(Collector):
    def __init__(self, families: list[Metric]):
        self.families = families

    def collect(self) -> Iterable[Metric]:
        return self.families


def _past(
    worker_id: str, rows: Sequence[worker_samples.Past], stretches: Sequence[int]
) -> WorkerPast:
    known = {row.stretch: row for row in rows}
    found = [known.get(one) for one in stretches]
    return WorkerPast(
        id=worker_id,
        busy=[None if one is None else one.busy for one in found],
        memory_free=[None if one is None else one.memory_free for one in found],
        memory_total=rows[-1].memory_total,
    )


def _families(session: Session, user: Caller, fair_share: FairShare) -> Iterator[Metric]:
    alive = workers.alive(session, SILENT_S)
    found = statistics(session)
    yield _by_label(GaugeMetricFamily, "mpt_experiments", "experiments by status", "status",
                    found.by_status)  # fmt: skip
    yield _oldest(oldest_waiting_s(session, fair_share), alive)
    about = "from submission to the first start"
    yield SummaryMetricFamily("mpt_wait_seconds", about, found.waits, found.waits_s)
    about = "from the first start to the end"
    yield SummaryMetricFamily("mpt_run_seconds", about, found.runs, found.runs_s)
    yield _by_label(CounterMetricFamily, "mpt_failures", "runs that failed, by kind", "kind",
                    found.failures)  # fmt: skip
    yield CounterMetricFamily("mpt_leases_lost", "attempts that were lost", value=found.lost)
    yield _leases_expired(session)
    about = "time since the controller last looked for work"
    age_s = controller_last_look_s(session)
    yield GaugeMetricFamily("mpt_controller_last_look_seconds", about, value=age_s)
    has_begun = {host: drain.has_begun for host, drain in drains.drains(session).items()}
    yield _workers([each for each in alive if not has_begun.get(each[0].host)])
    about = "live workers that start no run because their machine is drained"
    yield _on_hosts(alive, {host for host, begun in has_begun.items() if begun},
                    "mpt_workers_drained", about)  # fmt: skip
    about = "live workers, of those in mpt_workers, with a planned drain of their machine"
    yield _on_hosts(alive, {host for host, begun in has_begun.items() if not begun},
                    "mpt_workers_drain_planned", about)  # fmt: skip
    about = "live workers that start no run because the store's disk is full"
    full = sum(worker.store_full for worker, _, _ in alive)
    yield GaugeMetricFamily("mpt_workers_store_full", about, value=full)
    yield _gpu_memory(alive, _shown_ids(session, user, alive))


def _by_label(
    family: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    about: str,
    label: str,
    values: Mapping[str, int],
) -> Metric:
    made = family(name, about, labels=[label])
    for value, number in values.items():
        made.add_metric([value], number)
    return made


def _leases_expired(session: Session) -> Metric:
    about = "runs with an expired lease that no controller has requeued"
    return GaugeMetricFamily("mpt_leases_expired", about, value=expired_leases(session))


def _database(session: Session) -> Iterator[Metric]:
    """The size of the database, and the free bytes of its disk where this process sees that: not
    those of a server."""
    bind = session.get_bind()
    assert isinstance(bind, Engine)
    if bind.dialect.name == "postgresql":
        size = session.scalar(text("SELECT pg_database_size(current_database())"))
    else:
        path = str(bind.url.database)
        files = (path, f"{path}-wal")
        size = sum(os.path.getsize(file) for file in files if os.path.exists(file))
        about = "free bytes of the disk that SQLite's file lies on"
        free = shutil.disk_usage(os.path.dirname(path)).free
        yield GaugeMetricFamily("mpt_database_free_bytes", about, value=free)
    yield GaugeMetricFamily("mpt_database_bytes", "size of the database", value=size)


def _disk(settings: Settings) -> Iterator[Metric]:
    disk = shutil.disk_usage(settings.store)
    about = "of the disk that the store lies on"
    yield GaugeMetricFamily("mpt_store_size_bytes", f"size {about}", value=disk.total)
    yield GaugeMetricFamily("mpt_store_free_bytes", f"free bytes {about}", value=disk.free)


Alive = Sequence[tuple[Worker, str | None, float]]


def _oldest(waiting_s: Mapping[Device, float], alive: Alive) -> Metric:
    """The age of the oldest experiment that could start on the workers of each queue. `auto` can
    start on the queues that have workers, and on CPUs if none has."""
    about = "age of the oldest experiment that waits for a worker of the queue"
    family = GaugeMetricFamily("mpt_queue_oldest_seconds", about, labels=["queue"])
    present = {Queue(worker.queue) for worker, _, _ in alive} or {Queue.CPU}
    for queue in Queue:
        devices = {device for device in DEVICES[queue] if device != Device.AUTO or queue in present}
        family.add_metric([queue], max(waiting_s.get(device, 0.0) for device in devices))
    return family


def _workers(alive: Alive) -> Metric:
    about = "live workers whose machine is not drained"
    family = GaugeMetricFamily("mpt_workers", about, labels=["queue", "busy"])
    found = [(worker.queue, run is not None) for worker, run, _ in alive]
    for queue in Queue:
        for busy in (False, True):
            family.add_metric([queue, str(busy).lower()], found.count((queue.value, busy)))
    return family


def _on_hosts(alive: Alive, hosts: Set[str], name: str, about: str) -> Metric:
    queues = [worker.queue for worker, _, _ in alive if worker.host in hosts]
    numbers = {queue.value: queues.count(queue) for queue in Queue}
    return _by_label(GaugeMetricFamily, name, about, "queue", numbers)


def _shown_ids(session: Session, user: Caller, alive: Alive) -> Set[str]:
    """Return the running experiments whose ids the caller may see: all of them for a key of
    Prometheus, which reads nothing else."""
    running = [run for _, run, _ in alive if run is not None]
    if Scope.READ not in user.scopes:
        return {*running}
    return store.readable_ids(session, user, running)


def _gpu_memory(alive: Alive, shown_ids: Set[str]) -> Metric:
    """GPU memory by running experiment: as many series as there are GPU workers."""
    about = "memory of a GPU that a run has"
    labels = ["experiment", "worker", "gpu"]
    family = GaugeMetricFamily("mpt_run_gpu_memory_bytes", about, labels=labels)
    for worker, run, _ in alive:
        if run is not None and worker.gpu_memory_ours is not None:
            shown = run if run in shown_ids else ""
            family.add_metric([shown, worker.id, worker.gpu_uuid or ""], worker.gpu_memory_ours)
    return family
