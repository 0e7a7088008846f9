"""The routes of experiments."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel
from sqlalchemy.orm import Session

from mptcore.specs import ExperimentSpec, Limits, Problem
from service.bodies import StrictRoute
from service.database import Database
from service.dependencies import DatabaseDep, SettingsDep, UserDep, WriterDep
from service.errors import ApiError, invalid
from service.experiments import states, store
from service.experiments.artifacts import whole_file
from service.experiments.curves import hold_still, labels_of, read_series
from service.experiments.memory import Memory, expected_memory, memory_problems
from service.experiments.models import DesiredState, Experiment, Status
from service.experiments.place import place_of_next, places
from service.experiments.schemas import (
    ArtifactList,
    CurvesOut,
    ExperimentOut,
    ExperimentPage,
    ExperimentWithMetrics,
    Fields,
    MetricList,
    SeriesOut,
    Submission,
    Validation,
)
from service.experiments.selection import check_selection
from service.experiments.views import artifact_out, experiment_out, metric_out, summary_out
from service.pages import Cursor, Limit, page, read_cursor
from service.parameters import FreeParameters
from service.references import reference_problems
from service.settings import Settings
from service.users import User

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=StrictRoute)

ExperimentId = Annotated[str, Path(max_length=100)]
MaxPoints = Annotated[int, Query(ge=2, le=1_000_000)]
After = Annotated[int, Query(ge=0, le=2**31 - 1)]
IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=200)]


@router.post("", status_code=HTTPStatus.ACCEPTED)
def submit(
    submission: Submission,
    database: WriterDep,
    settings: SettingsDep,
    user: UserDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> ExperimentOut:
    """Queue an experiment. With an Idempotency-Key, the same request sent again is answered with
    the experiment that the first one made; another request under the same key is refused."""
    with _refusals(), database.transaction() as session:
        # The key comes first: what was accepted stays so, whatever has been deleted since.
        experiment = store.submitted(session, user.id, submission, idempotency_key)
        if experiment is None:
            _check_limits(submission.spec, settings.limits)
            _check_references(session, user, submission.spec)
            memory = _check_memory(session, submission.spec)
            experiment = store.submit(
                session, user.id, submission, idempotency_key, settings.share, memory
            )
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
        memory = _check_memory(session, submission.spec)
        place = place_of_next(
            session,
            user.id,
            submission.spec.compute.device,
            submission.priority,
            memory.expected,
            settings.worker_silent_s,
            settings.share,
        )
    return Validation(
        spec=submission.spec,
        masks=submission.spec.mask_count(),
        memory_bytes=memory.expected,
        queue_position=place.position,
        queue_reason=place.reason,
    )


MOST_SPECS = 50
"""On a page: a spec may be as large as a body."""


@router.get("", response_model=ExperimentPage)
def list_experiments(
    database: DatabaseDep,
    settings: SettingsDep,
    user: UserDep,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Status | None = None,
    fields: Fields = Fields.SUMMARY,
) -> Response:
    """The caller's experiments, newest first: without their specs, or with `fields=full` and at
    most 50 a page with them."""
    full = fields == Fields.FULL
    if full and limit > MOST_SPECS:
        detail = f"at most {MOST_SPECS} with fields=full, not {limit}"
        raise invalid([Problem("/query/limit", detail)])
    before = read_cursor(cursor)
    with database.snapshot() as session:
        found = store.newest(
            session, user.id, limit=limit + 1, before=before, status=status, with_spec=full
        )
        kept, next_cursor = page(found, limit)
        waiting = places(session, kept, settings.worker_silent_s, settings.share)
    out = experiment_out if full else summary_out
    items = [out(one, waiting.get(one.id)) for one in kept]
    return _json(ExperimentPage.model_construct(items=items, next_cursor=next_cursor))


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
    idempotency_key: IdempotencyKey = None,
) -> ExperimentOut:
    """Queue a new experiment with the spec of one that failed or was cancelled. The
    Idempotency-Key serves as for a submission."""
    with _refusals(), database.transaction() as session:
        old = _find(session, user.id, experiment_id)
        if old.status not in (Status.FAILED, Status.CANCELLED):
            detail = f"only what failed or was cancelled is retried; this is {old.status}"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        made = store.retry(session, old, idempotency_key, settings.share)
        answer = _out(session, made, settings)
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
        accepted = states.request(session, experiment_id, desired)
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
    """One of these files. One that is not there any more, or not what the run recorded, is 410."""
    with database.snapshot() as session:
        _find(session, user.id, experiment_id)
        known = {artifact.file: artifact for artifact in store.artifacts(session, experiment_id)}
    if name not in known:
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", "the experiment left no such file")
    file = whole_file(settings, known[name])
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
        hold_still(session)
        experiment = _find(session, user.id, experiment_id)
        series = read_series(session, experiment_id, after=after, max_points=max_points)
    return _curves(experiment, series, after)


@router.get("/{experiment_id}/curves/{series}", response_model=CurvesOut)
def get_curve(
    experiment_id: ExperimentId,
    series: Annotated[str, Path(max_length=64, pattern="^[a-z_]+$")],
    database: DatabaseDep,
    user: UserDep,
    labels: FreeParameters,
    max_points: MaxPoints = 100_000,
    after: After = 0,
) -> Response:
    """The series of one name; every other query parameter is a label and the value it must have,
    for example ?seed=44. While the experiment has not ended, a series that it may yet record is
    empty, not unknown."""
    with database.snapshot() as session:
        hold_still(session)
        experiment = _find(session, user.id, experiment_id)
        check_selection(labels_of(session, experiment_id), experiment.status, series, labels)
        found = read_series(
            session, experiment_id, name=series, labels=labels, after=after, max_points=max_points
        )
    return _curves(experiment, found, after)


def _curves(experiment: Experiment, series: list[SeriesOut], after: int) -> Response:
    answer = CurvesOut.model_construct(
        experiment_id=experiment.id,
        status=Status(experiment.status),
        last_seq=max(experiment.last_seq, after),  # a run that was put back stands before `after`
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


def _check_memory(session: Session, spec: ExperimentSpec) -> Memory:
    """What it is expected to take, if there is a worker that could hold it."""
    memory = expected_memory(session, spec)
    if problems := memory_problems(session, spec, memory):
        raise _invalid_spec(problems)
    return memory


def _invalid_spec(problems: list[Problem]) -> ApiError:
    return invalid([Problem(f"/spec{p.pointer}", p.detail) for p in problems])


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except store.Refused as refusal:
        jumps = refusal.reason == "may_not_jump"
        status = HTTPStatus.FORBIDDEN if jumps else HTTPStatus.CONFLICT
        raise ApiError(status, refusal.reason, str(refusal)) from None
    except store.KeyReused:
        detail = "another request was sent under this Idempotency-Key"
        raise ApiError(HTTPStatus.CONFLICT, "idempotency_key_reused", detail) from None


def _out(session: Session, experiment: Experiment, settings: Settings) -> ExperimentOut:
    waiting = places(session, [experiment], settings.worker_silent_s, settings.share)
    return experiment_out(experiment, waiting.get(experiment.id))


def _find(session: Session, owner_id: int, experiment_id: str) -> Experiment:
    found = store.find(session, owner_id, experiment_id) if experiment_id.isalnum() else None
    if found is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", "you have no experiment of this id")
    return found
