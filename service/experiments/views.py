"""Convert rows to response models."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Row

from mptcore.specs.stored import in_present_form
from service.accounts.permissions import permitted
from service.accounts.users import Caller
from service.experiments.models import Artifact, Event, Experiment
from service.experiments.schemas import (
    ArtifactOut,
    ExperimentOut,
    ExperimentSummary,
    FailureOut,
    LogOut,
    MetricOut,
    RunProgress,
    Urls,
)
from service.experiments.store import actions
from service.queue import states
from service.queue.schemas import QueuePosition
from service.records.results import MetricRow, parsed_labels
from service.vocabulary import Status


def experiment_out(
    experiment: Experiment, place: QueuePosition | None, title: str, reader: Caller
) -> ExperimentOut:
    """Convert an experiment. `place` is the queue position of a queued one."""
    summary = dict(summary_out(experiment, place, title, reader))
    return ExperimentOut.model_construct(**summary, spec=in_present_form(experiment.spec))


def summary_out(
    experiment: Experiment, place: QueuePosition | None, title: str, reader: Caller
) -> ExperimentSummary:
    """Convert an experiment without its spec."""
    path = f"/v1/experiments/{experiment.id}"
    parts = ("curves", "metrics", "artifacts", "events", "logs", "bundle")
    return ExperimentSummary.of(
        experiment,
        owner=experiment.owner.name,
        title=title,
        summary=None,
        terminal=states.is_terminal(experiment.status),
        sweep=experiment.sweep_id,
        after=experiment.comes_after or [],
        progress=_progress_out(experiment),
        queue=place,
        failure=failure_out(experiment),
        can=permitted(experiment, reader, actions(experiment)),
        urls=Urls(self=path, cancel=f"{path}:cancel", **{part: f"{path}/{part}" for part in parts}),
    )


def failure_out(row: Experiment | Row[Any]) -> FailureOut | None:
    """Return why an experiment has failed, if it has."""
    if row.failure_kind is None:
        return None
    return FailureOut(kind=row.failure_kind, message=row.failure_message or "")


def with_results(
    item: ExperimentSummary,
    metrics: Iterable[MetricRow] | None,
    summary: Sequence[Mapping[str, Any]] | None,
) -> bytes:
    """Return an experiment as JSON with some of its metrics, as in `MetricOut`, and their summary,
    as in `SummaryRow`. There may be MAX_METRICS, and objects of pydantic would take five times as
    long."""
    text = item.model_dump_json(exclude=None if summary is None else {"summary"}).encode()[:-1]
    if summary is not None:
        text += b',"summary":' + orjson.dumps(summary)
    if metrics is not None:
        text += b',"metrics":' + metrics_json(metrics)
    return text + b"}"


def metrics_json(metrics: Iterable[MetricRow]) -> bytes:
    """Return a list of metrics as JSON. Stored labels are JSON already."""
    return orjson.dumps(
        [
            {
                "name": name,
                "labels": orjson.Fragment(labels),
                "value": value,
                "std_err": std_err,
                "reason": reason,
            }
            for _, _, name, labels, value, std_err, reason in metrics
        ]
    )


def _progress_out(experiment: Experiment) -> RunProgress | None:
    if experiment.progress_total is None:
        return None
    at, eta_s = experiment.progress_at, experiment.progress_eta_s
    if experiment.status != Status.RUNNING:
        eta_s = None
    return RunProgress.model_validate(
        {
            "done": experiment.progress_done or 0,
            "total": experiment.progress_total,
            "unit": experiment.progress_unit or "",
            "stage": experiment.progress_stage,
            "at": at,
            "eta_s": eta_s,
            "estimated_end": None if at is None or eta_s is None else at + eta_s,
        }
    )


def metric_out(metric: MetricRow) -> MetricOut:
    """Convert a metric, without validation."""
    return MetricOut.model_construct(
        name=metric.name,
        labels=parsed_labels(metric.labels),
        value=metric.value,
        std_err=metric.std_err,
        reason=metric.reason,
    )


def log_out(event: Event) -> LogOut:
    return LogOut.of(event, **event.data)


def artifact_out(artifact: Artifact) -> ArtifactOut:
    return ArtifactOut(
        name=artifact.file,
        media_type=artifact.media_type,
        sha256=artifact.sha256,
        url=f"/v1/experiments/{artifact.experiment_id}/artifacts/{artifact.file}",
    )
