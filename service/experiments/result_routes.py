"""Routes of results other than curves: files, metrics, the log, and the bundle."""

from enum import StrEnum
from http import HTTPStatus
from typing import Annotated

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import iterate_in_threadpool, run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.accounts.permissions import find
from service.accounts.users import Caller
from service.db.engine import Database
from service.experiments.bundle import Bundle, bundle, zipped
from service.experiments.models import Experiment
from service.experiments.schemas import ArtifactList, Level, LogOut, LogPage, MetricList
from service.experiments.views import artifact_out, log_out, metrics_json
from service.places import Places
from service.queue.states import is_terminal
from service.records import results
from service.records.artifacts import whole_file
from service.refusals import ApiError
from service.web.dependencies import DatabaseDep, Reader, SettingsDep, reading
from service.web.etags import NOT_MODIFIED, IfNoneMatch, by_content
from service.web.files import RangedFile
from service.web.media_types import accepted, as_json, plain_json
from service.web.parameters import ExperimentId
from service.web.route import StrictRoute

router = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=StrictRoute)


@router.get("/{experiment_id}/artifacts")
def list_artifacts(
    experiment_id: ExperimentId, database: DatabaseDep, user: Reader
) -> ArtifactList:
    """List the files that the run has left so far."""
    with database.snapshot() as session:
        find(session, user, Experiment, experiment_id)
        found = results.artifacts(session, experiment_id)
    return ArtifactList(items=[artifact_out(artifact) for artifact in found])


@router.get(
    "/{experiment_id}/artifacts/{name}",
    response_class=RangedFile,
    responses={200: {"content": {"*/*": {}}, "description": "The file, as it was recorded"}},
)
def get_artifact(
    experiment_id: ExperimentId,
    name: Annotated[str, Path(max_length=200, description="Name of the file.")],
    database: DatabaseDep,
    settings: SettingsDep,
    user: Reader,
) -> RangedFile:
    """Return a file. A file that is missing or was changed since it was recorded is 410."""
    with database.snapshot() as session:
        find(session, user, Experiment, experiment_id)
        known = {artifact.file: artifact for artifact in results.artifacts(session, experiment_id)}
    if name not in known:
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", "the experiment left no such file")
    file = whole_file(settings, known[name])
    return RangedFile(file, media_type=known[name].media_type, filename=name)


@router.get("/{experiment_id}/metrics", response_model=MetricList, responses=NOT_MODIFIED)
def get_metrics(
    experiment_id: ExperimentId,
    database: DatabaseDep,
    user: Reader,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the metrics so far."""
    with reading(database) as session:
        find(session, user, Experiment, experiment_id)
        content = orjson.Fragment(metrics_json(results.metrics(session, experiment_id)))
    return by_content(plain_json({"items": content}), if_none_match)


class LogForm(StrEnum):
    """Format of a log."""

    JSON = "json"
    TEXT = "text"


LOG_TYPES = {LogForm.JSON: "application/json", LogForm.TEXT: "text/plain"}


async def _log_form(
    request: Request,
    format: Annotated[
        LogForm | None, Query(description="Format of the answer. It overrides the Accept header.")
    ] = None,
) -> LogForm:
    return format or accepted(request, LOG_TYPES)


@router.get(
    "/{experiment_id}/logs",
    response_model=LogPage,
    responses={200: {"content": {LOG_TYPES[LogForm.TEXT]: {"schema": {"type": "string"}}}}},
)
def get_logs(
    experiment_id: ExperimentId,
    database: DatabaseDep,
    user: Reader,
    form: Annotated[LogForm, Depends(_log_form)],
    after: Annotated[
        int, Query(ge=0, le=2**31 - 1, description="`last_seq` of a page, to get later lines.")
    ] = 0,
    level: Annotated[Level | None, Query(description="Only lines of this level.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Maximum number of lines.")] = 1000,
) -> Response:
    """Return the run's log, oldest first, as JSON or as lines of text. A resumed run logs the lines
    after its checkpoint again, with the same numbers."""
    with reading(database) as session:
        find(session, user, Experiment, experiment_id)
        found = results.logs(session, experiment_id, after, level, limit + 1)
    has_more = len(found) > limit
    lines = [log_out(event) for event in found[:limit]]
    last_seq = lines[-1].seq if lines else after
    if form == LogForm.TEXT:
        headers = {"MPT-Last-Seq": str(last_seq), "MPT-More": str(has_more).lower()}
        text = "".join(map(_line, lines))
        return Response(text, media_type=LOG_TYPES[form], headers=headers)
    return as_json(LogPage(items=lines, last_seq=last_seq, more=has_more))


def _line(one: LogOut) -> str:
    return f"{one.at:%Y-%m-%dT%H:%M:%SZ} {one.level:7} {one.message}\n"


class BundleResponse(StreamingResponse):
    """A zip that holds one of a few places while it is built and sent, because that takes 40 MB."""

    def __init__(self, request: Request, user: Caller, experiment_id: str) -> None:
        headers = {"Content-Disposition": f'attachment; filename="experiment-{experiment_id}.zip"'}
        super().__init__(iter(()), media_type="application/zip", headers=headers)
        self._request, self._caller, self._experiment_id = request, user, experiment_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._request.state.end_turn()  # it may wait for long
        state = self._request.app.state
        places: Places = state.bundles
        async with places.place(self._caller.id):
            made = await run_in_threadpool(self._bundle, state.database)
            parts = zipped(state.database, state.settings, made)
            self.body_iterator = iterate_in_threadpool(parts)
            await super().__call__(scope, receive, send)

    def _bundle(self, database: Database) -> Bundle:
        """Read the bundle. The experiment may have been deleted while the request waited."""
        with reading(database) as session:
            return bundle(session, find(session, self._caller, Experiment, self._experiment_id))


@router.get(
    "/{experiment_id}/bundle",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/zip": {}}, "description": "The zip"}},
)
def get_bundle(
    experiment_id: ExperimentId, request: Request, database: DatabaseDep, user: Reader
) -> BundleResponse:
    """Return an ended experiment as a zip: spec, records, curves, metrics, files, environments, and
    a README with the command that computes it again. An experiment that has not ended is 409."""
    with reading(database) as session:
        experiment = find(session, user, Experiment, experiment_id)
        if not is_terminal(experiment.status):
            detail = (
                f"only an ended experiment has a bundle, and this experiment is {experiment.status}"
            )
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
    return BundleResponse(request, user, experiment_id)
