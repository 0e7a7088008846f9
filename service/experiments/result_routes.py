"""Routes of results other than curves: files, metrics, the log, and the bundle."""

from enum import StrEnum
from http import HTTPStatus
from typing import Annotated

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import iterate_in_threadpool, run_in_threadpool
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session
from starlette.types import Receive, Scope, Send

from service.accounts.permissions import find
from service.accounts.users import Caller
from service.db.engine import Database
from service.experiments.bundle import Bundle, bundle, zipped
from service.experiments.models import Experiment
from service.experiments.schemas import ArtifactList, Level, LogOut, LogPage, MetricList
from service.experiments.views import artifact_out, log_out, metrics_json
from service.queue.states import is_terminal
from service.records import results
from service.records.artifacts import whole_file
from service.refusals import ApiError, TooLarge
from service.web import long_reads
from service.web.bodies import StrictRoute
from service.web.dependencies import DatabaseDep, Reader, SettingsDep, one_of, reading
from service.web.etags import NOT_MODIFIED, IfNoneMatch, by_content
from service.web.files import RangedFile
from service.web.long_reads import answered, large_answer
from service.web.media_types import accepted, as_json, plain_json
from service.web.parameters import ExperimentId

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
async def get_metrics(
    experiment_id: ExperimentId,
    request: Request,
    user: Reader,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the metrics so far."""

    def read(session: Session, *, is_first: bool) -> Response:
        find(session, user, Experiment, experiment_id)
        found = results.metrics(
            session, experiment_id, long_reads.SMALL_METRICS if is_first else None
        )
        content = orjson.Fragment(metrics_json(found))
        return by_content(plain_json({"items": content}), if_none_match)

    return await answered(request, read)


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
async def get_logs(
    experiment_id: ExperimentId,
    request: Request,
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

    def read(session: Session, *, is_first: bool) -> Response:
        find(session, user, Experiment, experiment_id)
        count = min(limit, long_reads.SMALL_LINES) if is_first else limit
        found = results.logs(session, experiment_id, after, level, count + 1)
        has_more = len(found) > count
        if has_more and count < limit:
            raise TooLarge
        lines = [log_out(event) for event in found[:count]]
        last_seq = lines[-1].seq if lines else after
        if form == LogForm.TEXT:
            headers = {"MPT-Last-Seq": str(last_seq), "MPT-More": str(has_more).lower()}
            text = "".join(map(_line, lines))
            return Response(text, media_type=LOG_TYPES[form], headers=headers)
        return as_json(LogPage(items=lines, last_seq=last_seq, more=has_more))

    return await answered(request, read)


def _line(one: LogOut) -> str:
    return f"{one.at:%Y-%m-%dT%H:%M:%SZ} {one.level:7} {one.message}\n"


class BundleResponse(StreamingResponse):
    """A zip that holds one of a few places while it is read and sent, because building it takes a
    thread and memory."""

    def __init__(self, request: Request, user: Caller, experiment: Experiment) -> None:
        headers = {"Content-Disposition": f'attachment; filename="experiment-{experiment.id}.zip"'}
        super().__init__(iter(()), media_type="application/zip", headers=headers)
        self._request, self._caller, self._experiment = request, user, experiment

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._request.app.state
        async with one_of(self._request, state.bundles.one):
            async with large_answer(self._request), reading(self._request) as database:
                made = await run_in_threadpool(_bundle, database, self._caller, self._experiment.id)
            zip_parts = zipped(state.database, state.settings, made)
            self.body_iterator = iterate_in_threadpool(zip_parts)
            await super().__call__(scope, receive, send)


def _bundle(database: Database, user: Caller, experiment_id: str) -> Bundle:
    """Read the bundle of an experiment. It may have been deleted while the request waited."""
    with database.snapshot() as session:
        return bundle(session, find(session, user, Experiment, experiment_id))


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
    with database.snapshot() as session:
        experiment = find(session, user, Experiment, experiment_id)
        if not is_terminal(experiment.status):
            detail = (
                f"only an ended experiment has a bundle, and this experiment is {experiment.status}"
            )
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
    return BundleResponse(request, user, experiment)
