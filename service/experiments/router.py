"""The routes of experiments."""

import base64
import logging
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel
from sqlalchemy.orm import Session

from mptcore.specs import ExperimentSpec, Limits, Problem
from service.bodies import StrictRoute
from service.database import Database
from service.dependencies import DatabaseDep, SettingsDep, UserDep, WriterDep
from service.errors import ApiError, invalid
from service.experiments import queue, store
from service.experiments.curves import read_series
from service.experiments.models import DesiredState, Experiment, Status
from service.experiments.place import place_of_next, places
from service.experiments.schemas import (
    ArtifactList,
    CurvesOut,
    ExperimentOut,
    ExperimentPage,
    ExperimentWithMetrics,
    MetricList,
    Submission,
    Validation,
)
from service.experiments.views import artifact_out, experiment_out, metric_out
from service.references import reference_problems
from service.settings import Settings
from service.users import User

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=StrictRoute)

ExperimentId = Annotated[str, Path(max_length=100)]
MaxPoints = Annotated[int, Query(ge=2, le=1_000_000)]
After = Annotated[int, Query(ge=0, le=2**31 - 1)]


@router.post("", status_code=HTTPStatus.ACCEPTED)
def submit(
    submission: Submission,
    database: WriterDep,
    settings: SettingsDep,
    user: UserDep,
    response: Response,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> ExperimentOut:
    """Queue an experiment. With an Idempotency-Key, the same request sent again is answered with
    the experiment that the first one made; another request under the same key is refused."""
    _check_limits(submission.spec, settings.limits)
    with database.transaction() as session:
        _check_references(session, user, submission.spec)
        experiment = store.submit(session, user.id, submission, idempotency_key)
        if experiment is None:
            detail = "another request was sent under this Idempotency-Key"
            raise ApiError(HTTPStatus.CONFLICT, "idempotency_key_reused", detail)
        answer = _out(session, experiment, settings)
    log.info("submitted", extra={"experiment_id": answer.id})
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
        _check_references(session, user, submission.spec)
        place = place_of_next(
            session,
            submission.spec.compute.device,
            submission.priority,
            settings.worker_silent_s,
        )
    return Validation(
        spec=submission.spec,
        masks=submission.spec.mask_count(),
        queue_position=place.position,
        queue_reason=place.reason,
    )


@router.get("")
def list_experiments(
    database: DatabaseDep,
    settings: SettingsDep,
    user: UserDep,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(max_length=200)] = None,
    status: Status | None = None,
) -> ExperimentPage:
    """The caller's experiments, newest first."""
    before = _read_cursor(cursor) if cursor else None
    with database.snapshot() as session:
        found = store.newest(session, user.id, limit=limit + 1, before=before, status=status)
        waiting = places(session, found[:limit], settings.worker_silent_s)
    items = [experiment_out(one, waiting.get(one.id)) for one in found[:limit]]
    more = len(found) > limit
    return ExperimentPage(items=items, next_cursor=_cursor(items[-1].id) if more else None)


@router.get("/{experiment_id}", response_model=ExperimentWithMetrics)
def get_experiment(
    experiment_id: ExperimentId, database: DatabaseDep, settings: SettingsDep, user: UserDep
) -> Response:
    """One experiment, where it stands, and its metrics so far."""
    with database.snapshot() as session:
        experiment = _find(session, user.id, experiment_id)
        answer = _out(session, experiment, settings)
        found = store.metrics(session, experiment_id) if experiment.last_seq else []
    metrics = [metric_out(m) for m in found]
    return _json(ExperimentWithMetrics.model_construct(**dict(answer), metrics=metrics))


@router.post("/{experiment_id}:cancel", status_code=HTTPStatus.ACCEPTED)
def cancel(
    experiment_id: ExperimentId, database: WriterDep, settings: SettingsDep, user: UserDep
) -> ExperimentOut:
    """Cancel an experiment: what waits at once, what runs within a heartbeat and the grace it is
    given. What has ended stays as it is: 409, but for what is cancelled already."""
    return _request(database, settings, user, experiment_id, DesiredState.CANCEL, Status.CANCELLED)


@router.post("/{experiment_id}:pause", status_code=HTTPStatus.ACCEPTED)
def pause(
    experiment_id: ExperimentId, database: WriterDep, settings: SettingsDep, user: UserDep
) -> ExperimentOut:
    """Set an experiment aside: what runs saves a checkpoint and frees its slot."""
    return _request(database, settings, user, experiment_id, DesiredState.PAUSE, Status.PAUSED)


@router.post("/{experiment_id}:resume", status_code=HTTPStatus.ACCEPTED)
def resume(
    experiment_id: ExperimentId, database: WriterDep, settings: SettingsDep, user: UserDep
) -> ExperimentOut:
    """Put a paused experiment back in the queue; it goes on from its checkpoint."""
    return _request(database, settings, user, experiment_id, DesiredState.RUN, Status.QUEUED)


@router.post("/{experiment_id}:retry", status_code=HTTPStatus.ACCEPTED)
def retry(
    experiment_id: ExperimentId,
    database: WriterDep,
    settings: SettingsDep,
    user: UserDep,
    response: Response,
) -> ExperimentOut:
    """Queue a new experiment with the spec of one that failed or was cancelled."""
    with database.transaction() as session:
        old = _find(session, user.id, experiment_id)
        if old.status not in (Status.FAILED, Status.CANCELLED):
            detail = f"only what failed or was cancelled is retried; this is {old.status}"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        answer = _out(session, store.retry(session, old), settings)
    response.headers["Location"] = answer.urls.self
    return answer


def _request(
    database: Database,
    settings: Settings,
    user: User,
    experiment_id: str,
    desired: DesiredState,
    already: Status,
) -> ExperimentOut:
    with database.transaction() as session:
        _find(session, user.id, experiment_id)
        accepted = queue.request(session, experiment_id, desired)
        experiment = _find(session, user.id, experiment_id)
        if accepted is None and experiment.status != already:
            what = "is being cancelled" if experiment.status == Status.RUNNING else "is"
            detail = f"the experiment {what} {experiment.status}, which does not allow this"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        return _out(session, experiment, settings)


@router.get("/{experiment_id}/artifacts")
def list_artifacts(
    experiment_id: ExperimentId, database: DatabaseDep, user: UserDep
) -> ArtifactList:
    """The files that the run left, so far."""
    with database.snapshot() as session:
        _find(session, user.id, experiment_id)
        found = store.artifacts(session, experiment_id)
    return ArtifactList(items=[artifact_out(artifact) for artifact in found])


@router.get("/{experiment_id}/artifacts/{name}", response_class=FileResponse)
def get_artifact(
    experiment_id: ExperimentId,
    name: Annotated[str, Path(max_length=200)],
    database: DatabaseDep,
    settings: SettingsDep,
    user: UserDep,
) -> FileResponse:
    """One of these files."""
    with database.snapshot() as session:
        _find(session, user.id, experiment_id)
        known = {artifact.file: artifact for artifact in store.artifacts(session, experiment_id)}
    if name not in known:
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", "the experiment left no such file")
    file = settings.artifacts(experiment_id) / known[name].file
    return FileResponse(file, media_type=known[name].media_type, filename=name)


@router.get("/{experiment_id}/metrics")
def get_metrics(experiment_id: ExperimentId, database: DatabaseDep, user: UserDep) -> MetricList:
    """The metrics so far."""
    with database.snapshot() as session:
        _find(session, user.id, experiment_id)
        found = store.metrics(session, experiment_id)
    return MetricList(items=[metric_out(metric) for metric in found])


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
        upto = experiment.last_seq
        series = read_series(session, experiment_id, after=after, upto=upto, max_points=max_points)
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
            session,
            experiment_id,
            name=series,
            labels=labels,
            after=after,
            upto=experiment.last_seq,
            max_points=max_points,
        )
    return _curves(experiment, found)


def _curves(experiment: Experiment, series: list[Any]) -> Response:
    answer = CurvesOut.model_construct(
        experiment_id=experiment.id,
        status=Status(experiment.status),
        last_seq=experiment.last_seq,
        series=series,
    )
    return _json(answer)


def _json(answer: BaseModel, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """An answer that needs no second check, which costs more than all the rest."""
    return Response(answer.model_dump_json(), status, media_type="application/json")


def _check_limits(spec: ExperimentSpec, limits: Limits) -> None:
    if problems := spec.limit_problems(limits):
        raise _invalid_spec(problems)


def _check_references(session: Session, user: User, spec: ExperimentSpec) -> None:
    if problems := reference_problems(session, user.id, spec):
        raise _invalid_spec(problems)


def _invalid_spec(problems: list[Problem]) -> ApiError:
    return invalid([Problem(f"/spec{p.pointer}", p.detail) for p in problems])


def _out(session: Session, experiment: Experiment, settings: Settings) -> ExperimentOut:
    waiting = places(session, [experiment], settings.worker_silent_s)
    return experiment_out(experiment, waiting.get(experiment.id))


def _find(session: Session, owner_id: int, experiment_id: str) -> Experiment:
    found = store.find(session, owner_id, experiment_id) if experiment_id.isalnum() else None
    if found is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", "you have no experiment of this id")
    return found


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
