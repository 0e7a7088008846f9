"""The routes of experiments."""

import base64
import json
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from sqlalchemy.orm import Session

from mptcore.specs import ExperimentSpec, Limits, Problem
from service.bodies import StrictRoute
from service.dependencies import DatabaseDep, SettingsDep, UserDep
from service.errors import ApiError, invalid
from service.experiments import queue, store
from service.experiments.curves import read_series
from service.experiments.models import Experiment, Metric, Status
from service.experiments.schemas import (
    CurvesOut,
    ExperimentOut,
    ExperimentPage,
    ExperimentWithMetrics,
    FailureOut,
    MetricOut,
    Progress,
    QueuePlace,
    Submission,
    Urls,
    Validation,
    moment,
)

router = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=StrictRoute)

ExperimentId = Annotated[str, Path(max_length=100)]
MaxPoints = Annotated[int, Query(ge=2, le=1_000_000)]
After = Annotated[int, Query(ge=0, le=2**63 - 1)]


@router.post("", status_code=HTTPStatus.ACCEPTED)
def submit(
    submission: Submission,
    database: DatabaseDep,
    settings: SettingsDep,
    user: UserDep,
    response: Response,
) -> ExperimentOut:
    """Queue an experiment."""
    _check_limits(submission.spec, settings.limits)
    with database.transaction() as session:
        experiment = store.submit(session, user.id, submission)
        session.refresh(experiment)
        answer = _out(session, experiment)
    response.headers["Location"] = answer.urls.self
    return answer


# The path of the custom method has no slash, hence no prefix that FastAPI could add it to.
custom = APIRouter(tags=["experiments"], route_class=StrictRoute)


@custom.post("/v1/experiments:validate")
def validate(
    submission: Submission, database: DatabaseDep, settings: SettingsDep, user: UserDep
) -> Validation:
    """Say what a submission would become, and store nothing."""
    _check_limits(submission.spec, settings.limits)
    with database.snapshot() as session:
        ahead = queue.position(session, Experiment(id="g", priority=submission.priority))
    return Validation(
        spec=submission.spec, masks=submission.spec.mask_count(), queue_position=ahead
    )


@router.get("")
def list_experiments(
    database: DatabaseDep,
    user: UserDep,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(max_length=200)] = None,
    status: Status | None = None,
) -> ExperimentPage:
    """The caller's experiments, newest first."""
    before = _read_cursor(cursor) if cursor else None
    with database.snapshot() as session:
        found = store.newest(session, user.id, limit=limit + 1, before=before, status=status)
        items = [_out(session, experiment) for experiment in found[:limit]]
    more = len(found) > limit
    return ExperimentPage(items=items, next_cursor=_cursor(items[-1].id) if more else None)


@router.get("/{experiment_id}")
def get_experiment(
    experiment_id: ExperimentId, database: DatabaseDep, user: UserDep
) -> ExperimentWithMetrics:
    """One experiment, where it stands, and its metrics so far."""
    with database.snapshot() as session:
        experiment = _find(session, user.id, experiment_id)
        answer = _out(session, experiment)
        found = store.metrics(session, experiment_id)
    return ExperimentWithMetrics(**dict(answer), metrics=[_metric_out(m) for m in found])


@router.post("/{experiment_id}:cancel", status_code=HTTPStatus.ACCEPTED)
def cancel(experiment_id: ExperimentId, database: DatabaseDep, user: UserDep) -> ExperimentOut:
    """Cancel an experiment. What waits is cancelled at once, what runs within a heartbeat and the
    grace it is given; what has ended stays as it is (409, but for what is cancelled already)."""
    with database.transaction() as session:
        experiment = _find(session, user.id, experiment_id)
        if queue.request_cancel(session, experiment_id) is None:
            session.refresh(experiment)
            if experiment.status != Status.CANCELLED:
                detail = f"the experiment has {experiment.status} already; that never changes"
                raise ApiError(HTTPStatus.CONFLICT, "already_ended", detail)
        session.refresh(experiment)
        return _out(session, experiment)


@router.get("/{experiment_id}/metrics")
def get_metrics(
    experiment_id: ExperimentId, database: DatabaseDep, user: UserDep
) -> list[MetricOut]:
    """The metrics so far."""
    with database.snapshot() as session:
        _find(session, user.id, experiment_id)
        return [_metric_out(metric) for metric in store.metrics(session, experiment_id)]


@router.get("/{experiment_id}/curves", response_model=CurvesOut)
def get_curves(
    experiment_id: ExperimentId,
    database: DatabaseDep,
    user: UserDep,
    max_points: MaxPoints = 1000,
    after: After = 0,
) -> Response:
    """All series, each of at most `max_points` points."""
    with database.snapshot() as session:
        experiment = _find(session, user.id, experiment_id)
        series = read_series(session, experiment_id, after=after, max_points=max_points)
    return _curves(experiment, series)


@router.get("/{experiment_id}/curves/{series}", response_model=CurvesOut)
def get_curve(
    experiment_id: ExperimentId,
    series: Annotated[str, Path(max_length=64, pattern="^[a-z_]+$")],
    database: DatabaseDep,
    user: UserDep,
    request: Request,
    max_points: MaxPoints = 100_000,
    after: After = 0,
) -> Response:
    """The series of one name; every other query parameter is a label and the value it must have,
    for example ?seed=44."""
    labels = {k: v for k, v in request.query_params.items() if k not in ("max_points", "after")}
    with database.snapshot() as session:
        experiment = _find(session, user.id, experiment_id)
        found = read_series(
            session, experiment_id, name=series, labels=labels, after=after, max_points=max_points
        )
    return _curves(experiment, found)


def _curves(experiment: Experiment, series: list[Any]) -> Response:
    answer = CurvesOut.model_construct(
        experiment_id=experiment.id,
        status=Status(experiment.status),
        last_seq=experiment.last_seq,
        series=series,
    )
    return Response(answer.model_dump_json(), media_type="application/json")


def _check_limits(spec: ExperimentSpec, limits: Limits) -> None:
    if problems := spec.limit_problems(limits):
        raise invalid([Problem(f"/spec{p.pointer}", p.detail) for p in problems])


def _find(session: Session, owner_id: int, experiment_id: str) -> Experiment:
    found = store.find(session, owner_id, experiment_id) if experiment_id.isalnum() else None
    if found is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", "you have no experiment of this id")
    return found


def _out(session: Session, experiment: Experiment) -> ExperimentOut:
    place = None
    if experiment.status == Status.QUEUED:
        ahead = queue.position(session, experiment)
        reason = "next in turn" if ahead == 0 else f"{ahead} before it"
        place = QueuePlace(position=ahead, reason=reason)
    progress = None
    if experiment.progress_total is not None:
        progress = Progress(
            done=experiment.progress_done or 0,
            total=experiment.progress_total,
            unit=experiment.progress_unit or "",
        )
    failure = None
    if experiment.failure_kind is not None:
        failure = FailureOut(kind=experiment.failure_kind, message=experiment.failure_message or "")
    created_at = moment(experiment.created_at)
    assert created_at is not None
    path = f"/v1/experiments/{experiment.id}"
    return ExperimentOut(
        id=experiment.id,
        name=experiment.name,
        tags=experiment.tags,
        note=experiment.note,
        priority=experiment.priority,
        status=Status(experiment.status),
        terminal=queue.is_terminal(experiment.status),
        desired_state=experiment.desired_state,
        attempt=experiment.attempt,
        worker=experiment.worker,
        created_at=created_at,
        started_at=moment(experiment.started_at),
        finished_at=moment(experiment.finished_at),
        progress=progress,
        queue=place,
        failure=failure,
        last_seq=experiment.last_seq,
        spec=ExperimentSpec.model_validate(experiment.spec),
        urls=Urls(
            self=path, curves=f"{path}/curves", metrics=f"{path}/metrics", cancel=f"{path}:cancel"
        ),
    )


def _metric_out(metric: Metric) -> MetricOut:
    return MetricOut(
        name=metric.name,
        labels=json.loads(metric.labels),
        value=metric.value,
        std_err=metric.std_err,
        reason=metric.reason,
    )


def _cursor(experiment_id: str) -> str:
    return base64.urlsafe_b64encode(experiment_id.encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> str:
    try:
        before = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except ValueError:
        before = ""
    if not before.isalnum():
        detail = "a cursor is the next_cursor of an earlier answer"
        raise invalid([Problem("/query/cursor", detail)])
    return before
