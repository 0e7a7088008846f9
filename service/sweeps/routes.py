"""Routes of sweeps."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy.orm import Session, defer

from service.accounts import audit, projects
from service.accounts.permissions import find, find_own, newest, permitted
from service.accounts.users import Caller
from service.experiments.models import Experiment
from service.experiments.routes import SubmitDep
from service.experiments.titles import small_specs
from service.queue import holds, states
from service.queue.snapshot import QueueSnapshots
from service.refusals import ApiError
from service.submission.requests import AddedPoints, NewSweep, SweepRetry
from service.sweeps import store
from service.sweeps.best import best_point, place_of
from service.sweeps.ends import estimated_end
from service.sweeps.models import Sweep
from service.sweeps.pairing import heldout_parts
from service.sweeps.schemas import (
    Added,
    CsvForm,
    MorePoints,
    Retried,
    SweepChanges,
    SweepOut,
    SweepPage,
    SweepSubmission,
    Table,
    TableFormat,
)
from service.sweeps.views import (
    Document,
    as_csv,
    long_csv,
    pooled_csv,
    summary_out,
    sweep_out,
    table,
)
from service.vocabulary import Status, Whose
from service.web.dependencies import (
    HEAVY,
    Canceller,
    DatabaseDep,
    QueueSnapshotsDep,
    Reader,
    SettingsDep,
    Submitter,
    limited,
)
from service.web.media_types import as_json, plain_json
from service.web.pagination import Cursor, Limit, WhoseQuery, page, read_cursor
from service.web.route import JsonBody, LargeRoute

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"], route_class=LargeRoute)

SweepId = Annotated[str, Path(max_length=100, description="Id of the sweep.")]


@router.post("", status_code=HTTPStatus.ACCEPTED, dependencies=[HEAVY])
def submit_sweep(
    submission: JsonBody[SweepSubmission],
    submitted: SubmitDep,
    database: DatabaseDep,
    queue_snapshots: QueueSnapshotsDep,
    user: Submitter,
    response: Response,
) -> SweepOut:
    """Queue an experiment for each point of a sweep: at most 10,000; all, or none if one is
    refused. Errors name the point, and point to its value in the request."""
    accepted = submitted(NewSweep(submission))
    with database.snapshot() as session:
        sweep = find(session, user, Sweep, accepted.sweep_id)
        answer = _out(session, queue_snapshots, sweep, user)
    log.info("sweep submitted", extra={"sweep_id": answer.id, "points": answer.points})
    response.headers["Location"] = answer.urls.self
    return answer


@router.get("", response_model=SweepPage)
def list_sweeps(
    database: DatabaseDep,
    user: Reader,
    limit: Limit = 50,
    cursor: Cursor = None,
    whose: WhoseQuery = Whose.MINE,
    id: Annotated[list[str], Query(max_length=100, description="Ids of the sweeps.")] = [],  # noqa: B006 (FastAPI copies it)
) -> Response:
    """List the caller's sweeps or, with `whose=project` or `whose=lab`, those shared with the
    caller's projects or the lab, newest first. With `id`, only those of them with these ids."""
    before = read_cursor(cursor)
    without_specs = defer(Sweep.spec, raiseload=True)  # which may be large
    with limited(database) as session:
        found = newest(session, user, Sweep, whose, limit + 1, before, without_specs, ids=id)
        kept, next_cursor = page(found, limit)
        counts = store.counts(session, [one.id for one in kept], user)
        best = _best_points(session, kept, counts, user)
        items = [summary_out(one, counts.get(one.id, {}), best[one.id]) for one in kept]
    return as_json(SweepPage(items=items, next_cursor=next_cursor))


@router.get("/{sweep_id:id}")
def get_sweep(
    sweep_id: SweepId, database: DatabaseDep, queue_snapshots: QueueSnapshotsDep, user: Reader
) -> SweepOut:
    """Return the number of a sweep's points by status, its progress, and its expected end."""
    with database.snapshot() as session:
        return _out(session, queue_snapshots, find(session, user, Sweep, sweep_id), user)


@router.get(
    "/{sweep_id}/table",
    response_model=Table,
    responses={200: {"content": {"text/csv": {}}}},
    dependencies=[HEAVY],
)
def get_table(
    sweep_id: SweepId,
    database: DatabaseDep,
    user: Reader,
    format: Annotated[TableFormat, Query(description="Format of the answer.")] = TableFormat.JSON,
    form: Annotated[
        CsvForm,
        Query(
            description="Rows of a CSV: `points`; `pooled` over points that differ only in seeds; "
            "`long`, a row for each value."
        ),
    ] = CsvForm.POINTS,
    order_by: Annotated[
        str | None,
        Query(
            max_length=1000,
            description="Order of the rows: a swept field, a metric or its error "
            "(`mpt std_err`), then asc or desc. Rows without a value are last.",
            examples=["lml desc"],
        ),
    ] = None,
) -> Response:
    """Return a row for each point: the swept fields, status, and metrics over seeds. `format=csv`
    is for a spreadsheet: `form=long` has a row for each value of a metric, `form=pooled` a row for
    all points that differ only in their seeds. Points whose experiment was deleted or is not open
    to you are left out."""
    with database.snapshot() as session:
        sweep = find(session, user, Sweep, sweep_id)
        store.check_specs(session, sweep_id, user)
        points = store.points(session, sweep_id, user)
        metrics = store.metrics(session, sweep_id)
        wanted = CsvForm.POOLED if format == TableFormat.JSON else form
        averaged = {} if wanted == CsvForm.LONG and order_by is None else metrics
        parts = partial(heldout_parts, session)
        made = table(
            sweep, points, averaged, parts, pooled=wanted == CsvForm.POOLED, order_by=order_by
        )
    if format == TableFormat.JSON:
        return plain_json(made)
    match form:
        case CsvForm.POINTS:
            text = as_csv(made)
        case CsvForm.POOLED:
            text = pooled_csv(made)
        case CsvForm.LONG:
            text = long_csv(made, metrics)
    return Response(text, media_type="text/csv")


@router.post("/{sweep_id}/points", status_code=HTTPStatus.ACCEPTED, dependencies=[HEAVY])
def add_points(
    sweep_id: SweepId,
    more: JsonBody[MorePoints],
    submitted: SubmitDep,
) -> Added:
    """Add points to a sweep, with the same base spec."""
    return Added(first=submitted(AddedPoints(sweep_id, more)).first, count=more.count())


@router.patch("/{sweep_id:id}")
def change_sweep(
    sweep_id: SweepId,
    changes: JsonBody[SweepChanges],
    database: DatabaseDep,
    settings: SettingsDep,
    queue_snapshots: QueueSnapshotsDep,
    user: Submitter,
) -> SweepOut:
    """Change the fields beside a sweep's spec. Priority and visibility also apply to its
    experiments."""
    wanted = changes.model_dump(exclude_unset=True)
    with database.transaction() as session:
        sweep = find_own(session, user, Sweep, sweep_id)
        projects.choose_visibility(session, wanted, sweep)
        store.change(session, sweep, wanted, settings.share)
        store.change_all(session, sweep, wanted)
        if "concurrency" in wanted:
            holds.change_limit(session, sweep)
        weighty = {n: wanted[n] for n in wanted if n not in ("name", "tags", "note")}
        audit.note(session, user, "sweep.changed", sweep_id, fields=[*wanted], **weighty)
        session.flush()
        return _out(session, queue_snapshots, sweep, user)


@router.delete("/{sweep_id:id}", status_code=HTTPStatus.NO_CONTENT)
def delete_sweep(sweep_id: SweepId, database: DatabaseDep, user: Canceller) -> None:
    """Delete a sweep and the experiments created for it. Waiting ones are cancelled first. 409 if
    an experiment is running (cancel it first) or pinned (unpin it first)."""
    with database.transaction() as session:
        sweep = find_own(session, user, Sweep, sweep_id)
        what = store.obstacle(session, sweep)
        if what == "running":
            detail = "an experiment of it is running: cancel the sweep, and delete it afterwards"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        if what == "pinned":
            detail = "one of its experiments is pinned: set pinned to false first"
            raise ApiError(HTTPStatus.CONFLICT, "pinned", detail)
        store.remove(session, sweep)
        audit.note(session, user, "sweep.deleted", sweep_id)


@router.post("/{sweep_id}:cancel", status_code=HTTPStatus.ACCEPTED)
def cancel_sweep(
    sweep_id: SweepId, database: DatabaseDep, queue_snapshots: QueueSnapshotsDep, user: Canceller
) -> SweepOut:
    """Cancel all of a sweep's experiments that have not ended: waiting ones at once, running ones
    within a heartbeat and the kill grace."""
    with database.transaction() as session:
        sweep = find_own(session, user, Sweep, sweep_id)
        count = len(states.cancel_all(session, Experiment.sweep_id == sweep.id).ids)
        audit.note(session, user, "sweep.cancelled", sweep_id, experiments=count)
        session.flush()
        return _out(session, queue_snapshots, sweep, user)


@router.post("/{sweep_id}:retry", status_code=HTTPStatus.ACCEPTED, dependencies=[HEAVY])
def retry_sweep(sweep_id: SweepId, submitted: SubmitDep, database: DatabaseDep) -> Retried:
    """Queue a new experiment for each point that failed or was cancelled. It replaces the old one
    in the sweep. A second request finds nothing to retry, unless `more` is true."""
    count = len(submitted(SweepRetry(sweep_id)).outcomes)
    with database.snapshot() as session:
        more = count > 0 and store.is_retryable(session, sweep_id)
    return Retried(count=count, more=more)


def _out(session: Session, queue_snapshots: QueueSnapshots, sweep: Sweep, user: Caller) -> SweepOut:
    every = store.counts(session, [sweep.id], user)
    counts = every.get(sweep.id, {})
    best = _best_points(session, [sweep], every, user)[sweep.id]
    running = store.progress(session, sweep.id)
    can = permitted(sweep, user, store.actions(session, sweep, counts))
    end = estimated_end(session, queue_snapshots, sweep)
    return sweep_out(sweep, counts, best, can, running, end)


def _best_points(
    session: Session,
    sweeps: Sequence[Sweep],
    counts: Mapping[str, Mapping[Status, int]],
    user: Caller,
) -> Mapping[str, Document | None]:
    """Return the best point of each sweep, None for those with many points or without a best."""
    few = [id for id, by_status in counts.items() if sum(by_status.values()) <= store.MAX_COMPARED]
    metrics = store.choosing_metrics(session, few, user)
    best = {one.id: best_point(one.fields, metrics.get(one.id, {})) for one in sweeps}
    specs = small_specs(session, [one["experiment_id"] for one in best.values() if one])
    for sweep in sweeps:
        if (point := best[sweep.id]) and (spec := specs.get(point["experiment_id"])):
            point["at"] = place_of(spec, sweep.fields)
    return best
