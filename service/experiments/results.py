"""The routes of what came out: files, metrics, curves."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import FileResponse
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from service.bodies import StrictRoute
from service.dependencies import DatabaseDep, Reader, SettingsDep
from service.errors import ApiError, invalid
from service.experiments import store
from service.experiments.artifacts import whole_file
from service.experiments.curves import TooFewPoints, hold_still, labels_of, read_curves
from service.experiments.finding import ExperimentId, find
from service.experiments.formats import Answer, FormatDep, written
from service.experiments.models import Experiment
from service.experiments.schemas import ArtifactList, CurvesOut, MetricList
from service.experiments.selection import Wanted, check_selection
from service.experiments.states import is_terminal
from service.experiments.views import artifact_out, metric_out
from service.parameters import FreeParameters

router = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=StrictRoute)

MaxPoints = Annotated[int, Query(ge=2, le=1_000_000)]
After = Annotated[int, Query(ge=0, le=2**31 - 1)]


@router.get("/{experiment_id}/artifacts")
def list_artifacts(
    experiment_id: ExperimentId, database: DatabaseDep, user: Reader
) -> ArtifactList:
    """The files that the run left, so far."""
    with database.snapshot() as session:
        find(session, user, experiment_id)
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
        find(session, user, experiment_id)
        known = {artifact.file: artifact for artifact in store.artifacts(session, experiment_id)}
    if name not in known:
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", "the experiment left no such file")
    file = whole_file(settings, known[name])
    return FileResponse(file, media_type=known[name].media_type, filename=name)


@router.get("/{experiment_id}/metrics")
def get_metrics(experiment_id: ExperimentId, database: DatabaseDep, user: Reader) -> MetricList:
    """The metrics so far."""
    with database.snapshot() as session:
        find(session, user, experiment_id)
        found = store.metrics(session, experiment_id)
    return MetricList(items=[metric_out(metric) for metric in found])


@router.get("/{experiment_id}/curves", response_model=CurvesOut)
def get_curves(
    experiment_id: ExperimentId,
    database: DatabaseDep,
    user: Reader,
    labels: FreeParameters,
    format: FormatDep,
    max_points: MaxPoints = 100_000,
    after: After = 0,
) -> Response:
    """All series, together of at most `max_points` points; every other query parameter is a label
    and the value it must have, for example ?seed=44, or one of several, ?seed=4&seed=44."""
    with database.snapshot() as session:
        hold_still(session)
        experiment = find(session, user, experiment_id)
        answer = _curves(session, experiment, None, labels, after, max_points)
    return written(answer, format)


@router.get("/{experiment_id}/curves/{series}", response_model=CurvesOut)
def get_curve(
    experiment_id: ExperimentId,
    series: Annotated[str, Path(max_length=64, pattern="^[a-z_]+$")],
    database: DatabaseDep,
    user: Reader,
    labels: FreeParameters,
    format: FormatDep,
    max_points: MaxPoints = 100_000,
    after: After = 0,
) -> Response:
    """The series of one name; the other query parameters are labels, as for all curves. While the
    experiment has not ended, a series that it may yet record is empty, not unknown."""
    with database.snapshot() as session:
        hold_still(session)
        experiment = find(session, user, experiment_id)
        answer = _curves(session, experiment, [series], labels, after, max_points)
    return written(answer, format)


def _curves(
    session: Session,
    experiment: Experiment,
    names: list[str] | None,
    labels: Wanted,
    after: int,
    max_points: int,
) -> Answer:
    known = labels_of(session, [experiment.id])[experiment.id]
    check_selection(known, is_terminal(experiment.status), names, labels)
    try:
        found = read_curves(
            session,
            [experiment.id],
            names=names,
            labels=labels,
            after=after,
            max_points=max_points,
        )
    except TooFewPoints as error:
        raise invalid([Problem("/query/max_points", str(error))]) from None
    # A run that was put back stands before `after`.
    last_seqs = {experiment.id: max(experiment.last_seq, after)}
    return Answer([experiment], found, last_seqs, batch=False)
