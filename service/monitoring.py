"""Who works, and how the queue does: for people and for Prometheus."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from pydantic import BaseModel
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service import workers
from service.database import now
from service.dependencies import DatabaseDep, SettingsDep
from service.experiments.models import Experiment, Queue, Status
from service.experiments.schemas import moment

router = APIRouter(tags=["monitoring"])

SILENT_S = 60.0
"""A worker that has been silent for longer is not shown."""


class WorkerOut(BaseModel):
    """A worker, what it has (memory in bytes), what it runs, and how long it has been silent."""

    id: str
    host: str
    queue: Queue
    experiment_id: str | None
    memory_free: int
    gpu: str | None
    gpu_driver: str | None
    gpu_memory_total: int | None
    gpu_memory_free: int | None
    started_at: datetime
    silent_s: float


class WorkerList(BaseModel):
    items: list[WorkerOut]


@router.get("/v1/workers")
def list_workers(database: DatabaseDep) -> WorkerList:
    """The workers that were heard of within a minute."""
    with database.snapshot() as session:
        found = workers.alive(session, SILENT_S)
    return WorkerList(items=[_worker_out(*row) for row in found])


@router.get("/metrics", response_class=Response)
def metrics(database: DatabaseDep, settings: SettingsDep) -> Response:
    """For Prometheus. Everything is read from the database: any API process answers alike."""
    registry = CollectorRegistry()
    with database.snapshot() as session:
        registry.register(_Metrics(list(_families(session))))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Metrics(Collector):
    def __init__(self, families: list[Metric]):
        self.families = families

    def collect(self) -> Iterable[Metric]:
        return self.families


def _worker_out(worker: workers.Worker, experiment_id: str | None, silent_s: float) -> WorkerOut:
    started_at = moment(worker.started_at)
    assert started_at is not None
    columns = ("id", "host", "memory_free", "gpu", "gpu_driver")
    memory = ("gpu_memory_total", "gpu_memory_free")
    return WorkerOut(
        **{name: getattr(worker, name) for name in (*columns, *memory)},
        queue=Queue(worker.queue),
        experiment_id=experiment_id,
        started_at=started_at,
        silent_s=round(silent_s, 3),
    )


def _families(session: Session) -> Iterator[Metric]:
    by_status = GaugeMetricFamily("mpt_experiments", "experiments by status", labels=["status"])
    counts = session.execute(
        select(Experiment.status, func.count()).group_by(Experiment.status)
    ).all()
    found = {row[0]: row[1] for row in counts}
    for status in Status:
        by_status.add_metric([status], found.get(status, 0))
    yield by_status

    queued = Experiment.status == Status.QUEUED
    oldest = session.scalar(select(now() - func.min(Experiment.created_at)).where(queued))
    yield GaugeMetricFamily(
        "mpt_queue_oldest_seconds", "age of the oldest queued experiment", value=oldest or 0
    )
    wait = Experiment.started_at - Experiment.created_at
    yield _summary(session, "mpt_wait_seconds", "from submission to the first start", wait)
    run = Experiment.finished_at - Experiment.started_at
    yield _summary(session, "mpt_run_seconds", "from the first start to the end", run)

    failures = CounterMetricFamily("mpt_failures", "failed experiments by kind", labels=["kind"])
    kinds = session.execute(
        select(Experiment.failure_kind, func.count())
        .where(Experiment.failure_kind.is_not(None))
        .group_by(Experiment.failure_kind)
    )
    for kind, count in kinds:
        failures.add_metric([str(kind)], count)
    yield failures
    lost = session.scalar(select(func.sum(Experiment.lost))) or 0
    yield CounterMetricFamily("mpt_leases_lost", "attempts that were lost", value=lost)

    by_queue = GaugeMetricFamily("mpt_workers", "live workers", labels=["queue", "busy"])
    alive = [(w.queue, e is not None) for w, e, _ in workers.alive(session, SILENT_S)]
    for queue in Queue:
        for busy in (False, True):
            by_queue.add_metric([queue, str(busy).lower()], alive.count((queue.value, busy)))
    yield by_queue


def _summary(
    session: Session, name: str, about: str, seconds: ColumnElement[float | None]
) -> Metric:
    count, total = session.execute(select(func.count(seconds), func.sum(seconds))).one()
    return SummaryMetricFamily(name, about, count_value=count, sum_value=total or 0.0)
