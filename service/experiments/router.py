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

from mptcore.specs import ExperimentSpec, Limits, Problem, stored_spec
from service import audit
from service.bodies import StrictRoute
from service.database import Database
from service.dependencies import (
    Canceller,
    DatabaseDep,
    Reader,
    SettingsDep,
    Submitter,
    WriterDep,
)
from service.errors import ApiError, invalid
from service.experiments import keeping, states, store
from service.experiments.artifacts import whole_file
from service.experiments.curves import hold_still, labels_of, read_series
from service.experiments.models import DesiredState, Experiment, Status
from service.experiments.place import place_of_next, places
from service.experiments.schemas import (
    ArtifactList,
    Changes,
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
from service.permission import check_whose, not_found, writable
from service.references import reference_problems
from service.settings import Settings
from service.sharing import Whose
from service.users import Caller

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
    user: Submitter,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> ExperimentOut:
    """Queue an experiment. With an Idempotency-Key, the same request sent again is answered with
    the experiment that the first one made; another request under the same key is refused."""
    with _one_request_per_key(), database.transaction() as session:
        # The key comes first: what was accepted stays so, whatever has been deleted since.
        experiment = store.submitted(session, user.id, submission, idempotency_key)
        if experiment is None:
            _check_limits(submission.spec, settings.limits)
            _check_references(session, user.id, submission.spec)
            experiment = store.submit(session, user.id, submission, idempotency_key, user)
        answer = _out(session, experiment, settings)
    log.info("submitted", extra={"experiment_id": answer.id})
    response.headers["Location"] = answer.urls.self
    return answer


# The path of the custom method has no slash, hence no prefix that FastAPI could add it to.
custom = APIRouter(tags=["experiments"], route_class=StrictRoute)


@custom.post("/v1/experiments:validate")
def validate(
    submission: Submission, database: DatabaseDep, settings: SettingsDep, user: Submitter
) -> Validation:
    """Say what a submission would become, and store nothing."""
    _check_limits(submission.spec, settings.limits)
    with database.snapshot() as session:
        _check_references(session, user.id, submission.spec)
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


MOST_SPECS = 50
"""On a page: a spec may be as large as a body."""


@router.get("", response_model=ExperimentPage)
def list_experiments(
    database: DatabaseDep,
    settings: SettingsDep,
    user: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    status: Status | None = None,
    fields: Fields = Fields.SUMMARY,
    whose: Whose = Whose.MINE,
) -> Response:
    """The caller's experiments, or `whose=lab` those shared with the lab, newest first: without
    their specs, or with `fields=full` and at most 50 a page with them."""
    check_whose(whose, user)
    full = fields == Fields.FULL
    if full and limit > MOST_SPECS:
        detail = f"at most {MOST_SPECS} with fields=full, not {limit}"
        raise invalid([Problem("/query/limit", detail)])
    before = read_cursor(cursor)
    with database.snapshot() as session:
        found = store.newest(
            session,
            user.id,
            whose=whose,
            limit=limit + 1,
            before=before,
            status=status,
            with_spec=full,
        )
        kept, next_cursor = page(found, limit)
        waiting = places(session, kept, settings.worker_silent_s)
    out = experiment_out if full else summary_out
    items = [out(one, waiting.get(one.id)) for one in kept]
    return _json(ExperimentPage.model_construct(items=items, next_cursor=next_cursor))


@router.get("/{experiment_id}", response_model=ExperimentWithMetrics)
def get_experiment(
    experiment_id: ExperimentId, database: DatabaseDep, settings: SettingsDep, user: Reader
) -> Response:
    """One experiment, where it stands, and its metrics so far."""
    with database.snapshot() as session:
        experiment = _find(session, user, experiment_id)
        answer = _out(session, experiment, settings)
        found = store.metrics(session, experiment_id) if experiment.last_seq else []
    metrics = [metric_out(m) for m in found]
    return _json(ExperimentWithMetrics.model_construct(**dict(answer), metrics=metrics))


WEIGHTY = ("priority", "visibility", "pinned")
"""Of these changes the audit keeps what they were changed to."""


@router.patch("/{experiment_id}")
def change(
    experiment_id: ExperimentId,
    changes: Changes,
    database: WriterDep,
    settings: SettingsDep,
    user: Submitter,
) -> ExperimentOut:
    """Change what stands beside the spec: name, tags, note, priority, visibility, pinned."""
    wanted = changes.model_dump(exclude_unset=True)
    with database.transaction() as session:
        experiment = _find_own(session, user, experiment_id)
        for name, value in wanted.items():
            setattr(experiment, name, value)
        # Its texts are the owner's, and long.
        weighty = {name: wanted[name] for name in WEIGHTY if name in wanted}
        audit.note(session, user, "experiment.changed", experiment_id, fields=[*wanted], **weighty)
        session.flush()
        return _out(session, experiment, settings)


@router.delete("/{experiment_id}", status_code=HTTPStatus.NO_CONTENT)
def delete(experiment_id: ExperimentId, database: WriterDep, user: Canceller) -> None:
    """Delete an experiment: no one sees it from now on, and its files go after a time. What waits
    is cancelled with it; what runs must be cancelled first, and what is pinned unpinned: 409. Runs
    that were accepted to start from it still do."""
    with database.transaction() as session:
        experiment = _find_own(session, user, experiment_id)
        if experiment.pinned:
            detail = "it is pinned: set pinned to false first"
            raise ApiError(HTTPStatus.CONFLICT, "pinned", detail)
        if not keeping.remove(session, experiment):
            detail = "it is running: cancel it first, and delete it once it has ended"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        audit.note(session, user, "experiment.deleted", experiment_id)


@router.post("/{experiment_id}:cancel", status_code=HTTPStatus.ACCEPTED)
def cancel(
    experiment_id: ExperimentId, database: WriterDep, settings: SettingsDep, user: Canceller
) -> ExperimentOut:
    """Cancel an experiment: what waits at once, what runs within a heartbeat and the grace it is
    given. What has ended stays as it is: 409, but for what is cancelled already."""
    return _request(database, settings, user, experiment_id, DesiredState.CANCEL, Status.CANCELLED)


@router.post("/{experiment_id}:pause", status_code=HTTPStatus.ACCEPTED)
def pause(
    experiment_id: ExperimentId, database: WriterDep, settings: SettingsDep, user: Canceller
) -> ExperimentOut:
    """Set an experiment aside: what runs saves a checkpoint and frees its slot."""
    return _request(database, settings, user, experiment_id, DesiredState.PAUSE, Status.PAUSED)


@router.post("/{experiment_id}:resume", status_code=HTTPStatus.ACCEPTED)
def resume(
    experiment_id: ExperimentId, database: WriterDep, settings: SettingsDep, user: Canceller
) -> ExperimentOut:
    """Put a paused experiment back in the queue; it goes on from its checkpoint."""
    return _request(database, settings, user, experiment_id, DesiredState.RUN, Status.QUEUED)


@router.post("/{experiment_id}:retry", status_code=HTTPStatus.ACCEPTED)
def retry(
    experiment_id: ExperimentId,
    database: WriterDep,
    settings: SettingsDep,
    user: Submitter,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> ExperimentOut:
    """Queue a new experiment with the spec of one that failed or was cancelled. The
    Idempotency-Key serves as for a submission."""
    with _one_request_per_key(), database.transaction() as session:
        old = _find_own(session, user, experiment_id)
        if old.status not in (Status.FAILED, Status.CANCELLED):
            detail = f"only what failed or was cancelled is retried; this is {old.status}"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        again = store.retried(session, old, idempotency_key)
        if again is None:
            # What was shared when the old one was submitted may be so no longer.
            _check_references(session, old.owner_id, stored_spec(old.spec))
            again = store.retry(session, old, idempotency_key, user)
        answer = _out(session, again, settings)
    response.headers["Location"] = answer.urls.self
    return answer


DONE = {
    DesiredState.CANCEL: "cancelled",
    DesiredState.PAUSE: "paused",
    DesiredState.RUN: "resumed",
}
"""What the audit calls it."""


def _request(
    database: Database,
    settings: Settings,
    user: Caller,
    experiment_id: str,
    desired: DesiredState,
    already: Status,
) -> ExperimentOut:
    with database.transaction() as session:
        _find_own(session, user, experiment_id)
        accepted = states.request(session, experiment_id, desired)
        experiment = _find(session, user, experiment_id)
        if accepted is None and experiment.status != already:
            what = "is being cancelled" if experiment.status == Status.RUNNING else "is"
            detail = f"the experiment {what} {experiment.status}, which does not allow this"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        if accepted is not None:
            audit.note(session, user, f"experiment.{DONE[desired]}", experiment_id)
        return _out(session, experiment, settings)


@router.get("/{experiment_id}/artifacts")
def list_artifacts(
    experiment_id: ExperimentId, database: DatabaseDep, user: Reader
) -> ArtifactList:
    """The files that the run left, so far."""
    with database.snapshot() as session:
        _find(session, user, experiment_id)
        found = store.artifacts(session, experiment_id)
    return ArtifactList(items=[artifact_out(artifact) for artifact in found])


@router.get("/{experiment_id}/artifacts/{name}", response_class=FileResponse)
def get_artifact(
    experiment_id: ExperimentId,
    name: Annotated[str, Path(max_length=200)],
    database: DatabaseDep,
    settings: SettingsDep,
    user: Reader,
) -> FileResponse:
    """One of these files. One that is not there any more, or not what the run recorded, is 410."""
    with database.snapshot() as session:
        _find(session, user, experiment_id)
        known = {artifact.file: artifact for artifact in store.artifacts(session, experiment_id)}
    if name not in known:
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", "the experiment left no such file")
    file = whole_file(settings, known[name])
    return FileResponse(file, media_type=known[name].media_type, filename=name)


@router.get("/{experiment_id}/metrics")
def get_metrics(experiment_id: ExperimentId, database: DatabaseDep, user: Reader) -> MetricList:
    """The metrics so far."""
    with database.snapshot() as session:
        _find(session, user, experiment_id)
        found = store.metrics(session, experiment_id)
    return MetricList(items=[metric_out(metric) for metric in found])


@router.get("/{experiment_id}/curves", response_model=CurvesOut)
def get_curves(
    experiment_id: ExperimentId,
    database: DatabaseDep,
    user: Reader,
    max_points: MaxPoints = 1000,
    after: After = 0,
) -> Response:
    """All series, each of at most `max_points` points."""
    with database.snapshot() as session:
        hold_still(session)
        experiment = _find(session, user, experiment_id)
        series = read_series(session, experiment_id, after=after, max_points=max_points)
    return _curves(experiment, series, after)


@router.get("/{experiment_id}/curves/{series}", response_model=CurvesOut)
def get_curve(
    experiment_id: ExperimentId,
    series: Annotated[str, Path(max_length=64, pattern="^[a-z_]+$")],
    database: DatabaseDep,
    user: Reader,
    labels: FreeParameters,
    max_points: MaxPoints = 100_000,
    after: After = 0,
) -> Response:
    """The series of one name; every other query parameter is a label and the value it must have,
    for example ?seed=44. While the experiment has not ended, a series that it may yet record is
    empty, not unknown."""
    with database.snapshot() as session:
        hold_still(session)
        experiment = _find(session, user, experiment_id)
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


def _check_references(session: Session, owner_id: int, spec: ExperimentSpec) -> None:
    if problems := reference_problems(session, owner_id, spec):
        raise _invalid_spec(problems)


def _invalid_spec(problems: list[Problem]) -> ApiError:
    return invalid([Problem(f"/spec{p.pointer}", p.detail) for p in problems])


@contextmanager
def _one_request_per_key() -> Iterator[None]:
    try:
        yield
    except store.KeyReused:
        detail = "another request was sent under this Idempotency-Key"
        raise ApiError(HTTPStatus.CONFLICT, "idempotency_key_reused", detail) from None


def _out(session: Session, experiment: Experiment, settings: Settings) -> ExperimentOut:
    waiting = places(session, [experiment], settings.worker_silent_s)
    return experiment_out(experiment, waiting.get(experiment.id))


def _find(session: Session, user: Caller, experiment_id: str) -> Experiment:
    """What the caller may read."""
    found = _readable(session, user, experiment_id)
    if found is None:
        raise not_found("experiment")
    return found


def _find_own(session: Session, user: Caller, experiment_id: str) -> Experiment:
    """What the caller may change."""
    return writable(user, _readable(session, user, experiment_id), "experiment")


def _readable(session: Session, user: Caller, experiment_id: str) -> Experiment | None:
    if not experiment_id.isalnum():
        return None
    return store.find_readable(session, user.id, experiment_id, user.is_admin)
