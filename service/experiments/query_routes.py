"""Routes that read experiments: a page of them, or one."""

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated

import orjson
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from service.accounts.permissions import check_whose, find
from service.accounts.users import Caller
from service.events.changes import Subject
from service.events.poller import Poller
from service.experiments.listing import Page, Wanted, load_texts, page_of, sweeps_of_page
from service.experiments.models import Experiment
from service.experiments.schemas import (
    AttemptOut,
    ExperimentOut,
    ExperimentPage,
    ExperimentWithMetrics,
    Fields,
    ListedWithMetrics,
)
from service.experiments.store import find_all
from service.experiments.summaries import FOR_RESULTS
from service.experiments.summaries import summary as summary_of
from service.experiments.titles import specs_of, titles_of
from service.experiments.views import experiment_out, summary_out, with_results
from service.queue import states
from service.queue.position import queue_positions
from service.queue.snapshot import QueueSnapshots
from service.records import results
from service.records.results import MetricRow, TooManyMetrics
from service.refusals import ApiError, invalid
from service.schemas import RequestModel, ResponseModel
from service.web.dependencies import (
    DatabaseDep,
    PollerDep,
    QueueSnapshotsDep,
    Reader,
    check_client,
    limited,
    reading,
    release_places,
)
from service.web.etags import NOT_MODIFIED, IfNoneMatch, by_content
from service.web.listing_parameters import WantedDep
from service.web.media_types import as_json, plain_json
from service.web.pagination import Limit, LongCursor
from service.web.parameters import ExperimentId
from service.web.route import JsonBody, StrictRoute

router = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=StrictRoute)

MAX_SPECS = 50
"""Maximum number of specs on a page. A spec may be as large as a request body."""
custom = APIRouter(tags=["experiments"], route_class=StrictRoute)


class ExperimentsWanted(RequestModel):
    """A request for several experiments."""

    ids: Annotated[
        list[Annotated[str, Field(max_length=100)]], Field(min_length=1, max_length=MAX_SPECS)
    ]
    """Ids of the experiments, each once."""


class ManyExperimentsOut(ResponseModel):
    """Several experiments."""

    items: list[ListedWithMetrics]
    """Experiments in the order of the ids, with specs and metrics."""


@router.get("", response_model=ExperimentPage)
def list_experiments(
    database: DatabaseDep,
    queue_snapshots: QueueSnapshotsDep,
    user: Reader,
    wanted: WantedDep,
    limit: Limit = 50,
    cursor: LongCursor = None,
    fields: Annotated[
        Fields, Query(description="`summary`, or `full` with specs.")
    ] = Fields.SUMMARY,
    metrics: Annotated[
        list[str], Query(max_length=20, description="Names of metrics to include.")
    ] = [],  # noqa: B006 (FastAPI copies it)
    summary: Annotated[
        bool,
        Query(description="True adds the results after training, and the means of `metrics`."),
    ] = False,
    folded: Annotated[
        bool,
        Query(
            description="True lists only the newest experiment of each sweep, of those that match."
        ),
    ] = False,
) -> Response:
    """List the caller's experiments or, with `whose=project` or `whose=lab`, those shared with the
    caller's projects or the lab, newest first. Specs are included with `fields=full`, on pages of
    at most 50. `metrics` names the metrics to include, `summary=true` adds the results; a page of
    experiments with very many of them is shorter than `limit`. All filters must match; a filter
    given several times matches any of its values."""
    check_whose(wanted.whose, user)
    full = fields == Fields.FULL
    names = [*dict.fromkeys((*FOR_RESULTS, *metrics))] if summary else []
    if full and limit > MAX_SPECS:
        detail = f"at most {MAX_SPECS} with fields=full, not {limit}"
        raise invalid([Problem("/query/limit", detail)])
    with limited(database) as session:
        found = page_of(session, user.id, wanted, limit=limit, cursor=cursor, folded=folded)
        found, known = _metrics_of_page(session, found, wanted, metrics)
        found, final = _metrics_of_page(session, found, wanted, names, only_final=True)
        sweeps = sweeps_of_page(session, user.id, wanted, found, cursor) if folded else []
        loaded = load_texts(session, found.items, with_spec=full)
        waiting = queue_positions(session, loaded, queue_snapshots, user.id)
        titles = titles_of(session, loaded, user)
        out = experiment_out if full else summary_out
        items = [out(one, waiting.get(one.id), titles[one.id], user) for one in loaded]
        if metrics or summary:
            specs = specs_of(session, loaded) if summary else {}
            texts = [
                orjson.Fragment(
                    with_results(
                        item,
                        known[item.id] if metrics else None,
                        summary_of(final[item.id], specs.get(item.id, {})) if summary else None,
                    )
                )
                for item in items
            ]
            return plain_json({"next_cursor": found.next_cursor, "items": texts, "sweeps": sweeps})
    page = ExperimentPage.model_construct(items=items, next_cursor=found.next_cursor, sweeps=sweeps)
    return as_json(page)


def _metrics_of_page(
    session: Session,
    found: Page,
    wanted: Wanted,
    names: Sequence[str],
    only_final: bool = False,
) -> tuple[Page, dict[str, list[MetricRow]]]:
    """Return the metrics with these names by experiment; with `only_final`, without those of
    `train.curve_at`. The page is shortened if its experiments have too many metrics together."""
    while True:
        try:
            return found, results.metrics_of(session, found.ids, names, only_final=only_final)
        except TooManyMetrics:
            found = found.first(len(found.items) // 2, wanted)


@custom.post("/v1/experiments:batchGet", response_model=ManyExperimentsOut)
def batch_get_experiments(
    wanted: JsonBody[ExperimentsWanted],
    database: DatabaseDep,
    queue_snapshots: QueueSnapshotsDep,
    user: Reader,
) -> Response:
    """Return up to 50 experiments: all or none. If some do not exist, the 404 names them."""
    with reading(database) as session:
        found = find_all(session, user, wanted.ids, whole=True)
        waiting = queue_positions(session, found, queue_snapshots, user.id)
        try:
            metrics = results.metrics_of(session, wanted.ids, None)
        except TooManyMetrics as error:
            raise invalid([Problem("/ids", f"name fewer experiments: {error}")]) from None
        titles = titles_of(session, found, user)
        items = [
            orjson.Fragment(
                with_results(
                    experiment_out(one, waiting.get(one.id), titles[one.id], user),
                    metrics[one.id],
                    summary_of(metrics[one.id], one.spec),
                )
            )
            for one in found
        ]
    return plain_json({"items": items})


# `Prefer: wait=N` (RFC 7240): wait at most N seconds for the requested state.
Ask = Callable[[bool], Awaitable[tuple[Response | None, bool]]]
"""Function that reads the state that a client waits for. It returns an answer, and whether it is
the awaited one. Its argument says whether an answer is wanted if it is not: otherwise the answer is
None, and only the status is read."""


MAX_WAIT_S = 60.0
"""Maximum seconds that a request waits with `Prefer: wait`."""


async def _seconds(
    prefer: Annotated[
        list[str] | None,
        Header(description="`wait=N`: answer after the end, or after N seconds."),
    ] = None,
) -> float:
    """Return how long the caller wants to wait. An unknown preference is ignored."""
    for preference in ",".join(prefer or ()).split(","):
        match = re.fullmatch(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*(;.*)?', preference, re.ASCII | re.I)
        if match:
            return min(float(match[1]), MAX_WAIT_S)
    return 0.0


WaitDep = Annotated[float, Depends(_seconds)]


@router.get("/{experiment_id:id}", response_model=ExperimentWithMetrics, responses=NOT_MODIFIED)
async def get_experiment(
    experiment_id: ExperimentId,
    request: Request,
    database: DatabaseDep,
    queue_snapshots: QueueSnapshotsDep,
    user: Reader,
    poller: PollerDep,
    wait_s: WaitDep,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return an experiment with its status, its metrics so far, and the environments of its
    attempts. With `Prefer: wait=N` the answer is sent when the experiment has ended or, with
    If-None-Match, when it has changed; after N seconds at the latest. Requests of a user with the
    maximum number of streams do not wait."""

    def read(session: Session, whole: bool) -> tuple[Response | None, bool]:
        experiment = find(session, user, Experiment, experiment_id)
        has_ended = states.is_terminal(experiment.status)
        if not whole and not has_ended:
            return None, False
        content = _whole(session, experiment, queue_snapshots, user)
        answer = by_content(Response(content, media_type="application/json"), if_none_match)
        changed = if_none_match is not None and answer.status_code != HTTPStatus.NOT_MODIFIED
        return answer, changed or has_ended

    if wait_s > 0 and poller.has_room(user):
        subject = Subject("experiment", experiment_id)

        async def ask(whole: bool) -> tuple[Response | None, bool]:
            check = partial(check_client, request)
            return await poller.read(user, partial(read, whole=whole), check)

        release_places(request)
        return await _awaited(poller, subject, user, wait_s, ask, if_none_match is not None)

    def read_now() -> Response:
        with reading(database) as session:
            answer, _ = read(session, whole=True)
        assert answer is not None
        return answer

    return await run_in_threadpool(read_now)


async def _awaited(
    poller: Poller, subject: Subject, user: Caller, seconds: float, ask: Ask, for_change: bool
) -> Response:
    """Return the answer as soon as it is the awaited one, or the last answer at the end. Raises
    ApiError if the client has gone."""
    ends_at = time.monotonic() + seconds
    with poller.listening(subject, user) as listener:
        while True:
            is_last = time.monotonic() >= ends_at or listener.cut
            answer, due = await ask(for_change or is_last)
            if listener.refused:
                detail = "this API key is no longer valid"
                raise ApiError(HTTPStatus.UNAUTHORIZED, "unauthorized", detail)
            if answer is not None and (due or is_last):
                answer.headers["Preference-Applied"] = f"wait={seconds:g}"
                return answer
            await listener.wait(max(0.0, ends_at - time.monotonic()))


def _whole(
    session: Session,
    experiment: Experiment,
    queue_snapshots: QueueSnapshots,
    user: Caller,
) -> bytes:
    found = results.metrics(session, experiment.id) if experiment.last_seq else []
    answer = to_response(session, experiment, queue_snapshots, user)
    begun = results.attempts(session, experiment.id) if experiment.attempt else []
    rest = ExperimentWithMetrics.model_construct(
        **dict(answer), attempts=[*map(AttemptOut.of, begun)]
    )
    return with_results(rest, found, summary_of(found, experiment.spec))


def to_response(
    session: Session, experiment: Experiment, queue_snapshots: QueueSnapshots, reader: Caller
) -> ExperimentOut:
    """Return an experiment as its reader may see it, with its queue position."""
    waiting = queue_positions(session, [experiment], queue_snapshots, reader.id)
    title = titles_of(session, [experiment], reader)[experiment.id]
    return experiment_out(experiment, waiting.get(experiment.id), title, reader)
