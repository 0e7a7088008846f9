"""The routes of what came out beside curves: files, metrics, and all together."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Response
from fastapi.responses import FileResponse, StreamingResponse

from service.bodies import StrictRoute
from service.dependencies import DatabaseDep, Reader, SettingsDep
from service.errors import ApiError
from service.experiments import store
from service.experiments.artifacts import whole_file
from service.experiments.bundle import bundle, zipped
from service.experiments.finding import ExperimentId, find
from service.experiments.schemas import ArtifactList, MetricList
from service.experiments.states import is_terminal
from service.experiments.views import artifact_out, as_json, metric_out
from service.validators import NOT_MODIFIED, IfNoneMatch, by_content

router = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=StrictRoute)


@router.get("/{experiment_id}/artifacts")
def list_artifacts(
    experiment_id: ExperimentId, database: DatabaseDep, user: Reader
) -> ArtifactList:
    """The files that the run left, so far."""
    with database.snapshot() as session:
        find(session, user, experiment_id)
        found = store.artifacts(session, experiment_id)
    return ArtifactList(items=[artifact_out(artifact) for artifact in found])


@router.get(
    "/{experiment_id}/artifacts/{name}",
    response_class=FileResponse,
    responses={200: {"content": {"*/*": {}}, "description": "The file, as it was recorded"}},
)
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


@router.get("/{experiment_id}/metrics", response_model=MetricList, responses=NOT_MODIFIED)
def get_metrics(
    experiment_id: ExperimentId,
    database: DatabaseDep,
    user: Reader,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The metrics so far."""
    with database.snapshot() as session:
        find(session, user, experiment_id)
        found = store.metrics(session, experiment_id)
    answer = MetricList(items=[metric_out(metric) for metric in found])
    return by_content(as_json(answer), if_none_match)


@router.get(
    "/{experiment_id}/bundle",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/zip": {}}, "description": "The zip"}},
)
def get_bundle(
    experiment_id: ExperimentId, database: DatabaseDep, settings: SettingsDep, user: Reader
) -> StreamingResponse:
    """An experiment that has ended as a zip: its spec, records, curves, metrics and files, what it
    was computed with, and a README with the command that computes it again. One that has not ended
    is 409."""
    with database.snapshot() as session:
        experiment = find(session, user, experiment_id)
        if not is_terminal(experiment.status):
            detail = f"a bundle is of what has ended, and the experiment is {experiment.status}"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        made = bundle(session, experiment)
    name = f"experiment-{experiment_id}.zip"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(
        zipped(database, settings, made), media_type="application/zip", headers=headers
    )
