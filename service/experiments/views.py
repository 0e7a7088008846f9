"""Convert rows to response models."""

import json
from collections.abc import Sequence

from service.experiments.schemas import (
    ArtifactOut,
    AttemptOut,
    EnvironmentOut,
    ExperimentOut,
    ExperimentSummary,
    FailureOut,
    ListedWithMetrics,
    LogOut,
    MetricOut,
    RunProgress,
    StageOut,
    SummaryWithMetrics,
    Urls,
)
from service.queue import states
from service.queue.schemas import QueuePosition
from service.tables.engine import moment
from service.tables.experiments import Artifact, Attempt, Event, Experiment, Metric, Status
from service.tables.visibility import Visibility


def experiment_out(experiment: Experiment, place: QueuePosition | None) -> ExperimentOut:
    """Convert an experiment. `place` is the queue position of a queued one."""
    summary = dict(summary_out(experiment, place))
    return ExperimentOut.model_construct(**summary, spec=experiment.spec)


def summary_out(experiment: Experiment, place: QueuePosition | None) -> ExperimentSummary:
    """Convert an experiment without its spec."""
    failure = None
    if experiment.failure_kind is not None:
        failure = FailureOut(kind=experiment.failure_kind, message=experiment.failure_message or "")
    path = f"/v1/experiments/{experiment.id}"
    return ExperimentSummary(
        id=experiment.id,
        owner=experiment.owner.name,
        visibility=Visibility(experiment.visibility),
        pinned=experiment.pinned,
        name=experiment.name,
        tags=experiment.tags,
        note=experiment.note,
        priority=experiment.priority,
        family=experiment.family,
        status=Status(experiment.status),
        terminal=states.is_terminal(experiment.status),
        desired_state=experiment.desired_state,
        attempt=experiment.attempt,
        retry_of=experiment.retry_of,
        sweep=experiment.sweep_id,
        after=experiment.comes_after or [],
        worker=experiment.worker,
        created_at=moment(experiment.created_at),
        started_at=moment(experiment.started_at),
        finished_at=moment(experiment.finished_at),
        progress=_progress_out(experiment),
        queue=place,
        failure=failure,
        last_seq=experiment.last_seq,
        urls=Urls(
            self=path,
            curves=f"{path}/curves",
            metrics=f"{path}/metrics",
            artifacts=f"{path}/artifacts",
            events=f"{path}/events",
            logs=f"{path}/logs",
            bundle=f"{path}/bundle",
            cancel=f"{path}:cancel",
        ),
    )


def with_metrics(item: ExperimentSummary, metrics: Sequence[Metric]) -> ExperimentSummary:
    """Add some of its metrics."""
    kind = ListedWithMetrics if isinstance(item, ExperimentOut) else SummaryWithMetrics
    return kind.model_construct(**dict(item), metrics=[metric_out(one) for one in metrics])


def _progress_out(experiment: Experiment) -> RunProgress | None:
    if experiment.progress_total is None:
        return None
    stage = experiment.progress_stage
    at, eta_s = experiment.progress_at, experiment.progress_eta_s
    if experiment.status != Status.RUNNING:
        eta_s = None
    return RunProgress(
        done=experiment.progress_done or 0,
        total=experiment.progress_total,
        unit=experiment.progress_unit or "",
        stage=None if stage is None else StageOut(**stage),
        at=moment(at),
        eta_s=eta_s,
        estimated_end=None if at is None or eta_s is None else moment(at + eta_s),
    )


def metric_out(metric: Metric) -> MetricOut:
    return MetricOut(
        name=metric.name,
        labels=json.loads(metric.labels),
        value=metric.value,
        std_err=metric.std_err,
        reason=metric.reason,
    )


def log_out(event: Event) -> LogOut:
    assert event.seq is not None
    return LogOut(seq=event.seq, at=moment(event.at), **event.data)


def attempt_out(attempt: Attempt) -> AttemptOut:
    found = attempt.environment
    return AttemptOut(
        attempt=attempt.attempt,
        worker=attempt.worker,
        started_at=moment(attempt.started_at),
        ended_at=moment(attempt.ended_at),
        peak_bytes=attempt.peak_bytes,
        environment=None if found is None else EnvironmentOut(**found),
    )


def artifact_out(artifact: Artifact) -> ArtifactOut:
    return ArtifactOut(
        name=artifact.file,
        media_type=artifact.media_type,
        sha256=artifact.sha256,
        url=f"/v1/experiments/{artifact.experiment_id}/artifacts/{artifact.file}",
    )
