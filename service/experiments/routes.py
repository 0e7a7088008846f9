"""Routes that queue experiments, change them and control them."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from sqlalchemy import ColumnElement, and_, false, insert, or_, select
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from service.accounts import audit, projects
from service.accounts.models import AuditEntry
from service.accounts.permissions import check_whose, find, find_own
from service.accounts.users import Caller
from service.db.engine import Database
from service.experiments import deletion, store
from service.experiments.listing import Wanted, clauses
from service.experiments.models import Experiment
from service.experiments.query_routes import to_response
from service.experiments.schemas import Changes, ExperimentOut, Validation
from service.queue import states
from service.queue.position import position_of_next
from service.queue.runtime import expected_runtime
from service.queue.snapshot import QueueSnapshots
from service.refusals import ApiError, invalid
from service.schemas import ResponseModel
from service.submission.idempotency import Accepted
from service.submission.preparation import prepare
from service.submission.requests import (
    Batch,
    BatchOut,
    Bodies,
    Made,
    Retry,
    SubmissionBody,
    SubmissionRequest,
)
from service.submission.submit import submitted
from service.vocabulary import DONE, UNFINISHED, Action, DesiredState, Status
from service.web.dependencies import (
    HEAVY,
    Canceller,
    DatabaseDep,
    Idempotency,
    QueueSnapshotsDep,
    SettingsDep,
    Submitter,
    limited,
)
from service.web.listing_parameters import WantedDep
from service.web.parameters import ExperimentId
from service.web.route import JsonBody, LargeRoute, StrictRoute

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=StrictRoute)


Submit = Callable[[SubmissionRequest], Accepted]


async def _submit(
    database: DatabaseDep, settings: SettingsDep, user: Submitter, key: Idempotency
) -> Submit:
    return partial(submitted, database, settings, user, key=key)


SubmitDep = Annotated[Submit, Depends(_submit)]
"""Submits for the caller, under the request's Idempotency-Key: see `submitted`."""


Answer = Callable[[str], ExperimentOut]


async def _answer(
    database: DatabaseDep, queue_snapshots: QueueSnapshotsDep, user: Submitter
) -> Answer:
    def answer(experiment_id: str) -> ExperimentOut:
        with database.snapshot() as session:
            experiment = find(session, user, Experiment, experiment_id)
            return to_response(session, experiment, queue_snapshots, user)

    return answer


AnswerDep = Annotated[Answer, Depends(_answer)]
"""Returns an experiment by its id. It is read after the transaction that stores it: the first look
at the queue of a second takes long, and other writers would wait."""


@router.post(
    "",
    status_code=HTTPStatus.ACCEPTED,
    responses={
        200: {"model": ExperimentOut, "description": "An earlier experiment that computed the same"}
    },
)
def submit(
    sent: JsonBody[SubmissionBody],
    submitted: SubmitDep,
    answer: AnswerDep,
    response: Response,
) -> ExperimentOut:
    """Queue an experiment and answer 202. If an experiment that you may read has already computed
    the same, answer 200 with that experiment and set `cached_from`; nothing is queued and no limit
    applies. A repeated request with the same Idempotency-Key gets the answer of the first; a
    different request with the same key is refused."""
    (made,) = submitted(Bodies([sent])).outcomes
    if made.cached_from is None:
        log.info("submitted", extra={"experiment_id": made.id})
    else:
        response.status_code = HTTPStatus.OK
    experiment = answer(made.id)
    response.headers["Location"] = experiment.urls.self
    return experiment.model_copy(update={"cached_from": made.cached_from})


# The paths of custom methods have no slash, hence no prefix that FastAPI could add them to.
custom = APIRouter(tags=["experiments"], route_class=StrictRoute)
batches = APIRouter(tags=["experiments"], route_class=LargeRoute)


@batches.post("/v1/experiments:batch", status_code=HTTPStatus.ACCEPTED, dependencies=[HEAVY])
def submit_batch(batch: JsonBody[Batch], submitted: SubmitDep) -> BatchOut:
    """Queue up to a thousand experiments: all, or none if one is refused. The Idempotency-Key
    applies to the whole request."""
    outcomes = submitted(Bodies(batch.experiments, "/experiments/{}")).outcomes
    return BatchOut(
        items=[
            Made(id=one.id, url=f"/v1/experiments/{one.id}", cached_from=one.cached_from)
            for one in outcomes
        ]
    )


@custom.post("/v1/experiments:validate")
def validate(
    sent: JsonBody[SubmissionBody],
    database: DatabaseDep,
    settings: SettingsDep,
    queue_snapshots: QueueSnapshotsDep,
    user: Submitter,
) -> Validation:
    """Return the outcome that a submission would have. Nothing is stored."""
    with database.snapshot() as session:
        submissions = Bodies([sent]).submissions(session, settings, user)
        (one,) = prepare(session, settings, submissions).experiments
        spec = one.submission.spec
        runtime = expected_runtime(session, spec, settings.worker_silent_s)
        place = position_of_next(session, user.id, one.columns, queue_snapshots)
    return Validation(
        spec=spec,
        masks=spec.mask_count(),
        points=spec.point_count().total,
        memory_bytes=one.columns["memory_bytes"],
        runtime=runtime,
        cached_from=one.cached_from,
        queue_position=place.position,
        queue_reason=place.reason,
        estimated_start=place.estimated_start,
        estimate=place.estimate,
    )


MAX_CANCELLED = 500
"""Maximum number of experiments that one request cancels: its transaction holds up other writers on
SQLite."""
NOT_FILTERS = ("whose", "order_by")


class CancelledOut(ResponseModel):
    """Numbers of experiments that a request cancelled."""

    cancelled: int
    """Number of queued or paused experiments that have ended."""
    ending: int
    """Number of running experiments. They end within a heartbeat and their grace period."""
    more: bool
    """True if more experiments match: send the request again."""


Matching = Sequence[tuple[str, Status]]
"""Ids of experiments and their status."""


def _to_cancel(database: DatabaseDep, wanted: WantedDep, user: Canceller) -> Matching:
    """Return the experiments to cancel, and perhaps one more. The search is done before the
    transaction, which on SQLite makes others wait."""
    check_whose(wanted.whose, user)
    given = (getattr(wanted, one.name) for one in fields(Wanted) if one.name not in NOT_FILTERS)
    if not any(one.strip() if isinstance(one, str) else one for one in given):
        raise invalid([Problem("/query", "give at least one filter, such as status or owner")])
    with limited(database) as session:
        return _matching(session, wanted, user)


def _matching(session: Session, wanted: Wanted, user: Caller) -> Matching:
    query = select(Experiment.id, Experiment.status).where(
        *clauses(session, user.id, wanted),
        Experiment.status.in_(UNFINISHED),
        Experiment.desired_state != DesiredState.CANCEL,
    )
    if not user.is_admin:
        query = query.where(Experiment.owner_id == user.id)
    rows = session.execute(query.order_by(Experiment.id).limit(MAX_CANCELLED + 1))
    return [(row.id, row.status) for row in rows]


def _as_found(found: Matching) -> ColumnElement[bool]:
    """Return the condition that an experiment was found and has the same status still."""
    ids = defaultdict[Status, list[str]](list)
    for one, status in found:
        ids[status].append(one)
    of_status = (
        and_(Experiment.status == status, Experiment.id.in_(some)) for status, some in ids.items()
    )
    return or_(false(), *of_status)


@custom.post("/v1/experiments:cancel", status_code=HTTPStatus.ACCEPTED)
def cancel_experiments(
    found: Annotated[Matching, Depends(_to_cancel)],
    database: DatabaseDep,
    user: Canceller,
) -> CancelledOut:
    """Cancel up to 500 experiments that have not ended and match all filters, the oldest first: the
    caller's, or with `whose=all` an admin cancels anyone's (`owner=ann`). The filters are those of
    the list. At least one is needed; `order_by` has no effect. An experiment whose status changes
    during the search is not cancelled."""
    with database.transaction() as session:
        chosen = select(Experiment.id).where(_as_found(found[:MAX_CANCELLED]))
        # Once they are locked they stay as they are.
        still = session.scalars(chosen.order_by(Experiment.id).with_for_update(of=Experiment)).all()
        done = states.cancel_all(session, Experiment.id.in_(still))
        lines = [audit.line(user, "experiment.cancelled", one) for one in done.ids]
        if lines:
            session.execute(insert(AuditEntry), lines)
    cancelled = len(done.at_once)
    return CancelledOut(
        cancelled=cancelled,
        ending=len(done.ids) - cancelled,
        more=len(found) > min(MAX_CANCELLED, len(still)),
    )


WEIGHTY = ("priority", "visibility", "pinned")
"""Changes whose new values are written to the audit log."""


@router.patch("/{experiment_id:id}")
def change(
    experiment_id: ExperimentId,
    changes: JsonBody[Changes],
    database: DatabaseDep,
    settings: SettingsDep,
    queue_snapshots: QueueSnapshotsDep,
    user: Submitter,
) -> ExperimentOut:
    """Change the fields beside the spec: name, tags, note, priority, visibility, pinned."""
    wanted = changes.model_dump(exclude_unset=True)
    with database.transaction() as session:
        experiment = find_own(session, user, Experiment, experiment_id)
        projects.choose_visibility(session, wanted, experiment)
        store.change(session, experiment, wanted, settings.share)
        # Its texts are the owner's, and long.
        weighty = {name: wanted[name] for name in WEIGHTY if name in wanted}
        audit.note(session, user, "experiment.changed", experiment_id, fields=[*wanted], **weighty)
        session.flush()
        return to_response(session, experiment, queue_snapshots, user)


@router.delete("/{experiment_id:id}", status_code=HTTPStatus.NO_CONTENT)
def delete(experiment_id: ExperimentId, database: DatabaseDep, user: Canceller) -> None:
    """Delete an experiment. It is hidden at once, and its files are removed later. A waiting one is
    cancelled first. 409 if it is running (cancel it first) or pinned (unpin it first). Accepted
    runs that start from it can still do so."""
    with database.transaction() as session:
        experiment = find_own(session, user, Experiment, experiment_id)
        if experiment.pinned:
            detail = "it is pinned: set pinned to false first"
            raise ApiError(HTTPStatus.CONFLICT, "pinned", detail)
        if not deletion.remove(session, experiment):
            detail = "it is running: cancel it first, and delete it once it has ended"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        audit.note(session, user, "experiment.deleted", experiment_id)


@router.post("/{experiment_id}:undelete")
def undelete(
    experiment_id: ExperimentId,
    database: DatabaseDep,
    settings: SettingsDep,
    queue_snapshots: QueueSnapshotsDep,
    user: Canceller,
) -> ExperimentOut:
    """Restore a deleted experiment while its files still exist (`MPT_PURGE_AFTER_S`). An experiment
    that was waiting when it was deleted is cancelled, and may be retried."""
    with database.transaction() as session:
        if store.find_deleted(session, user, experiment_id) is not None:
            if not deletion.restore(session, experiment_id, settings.purge_after_s):
                detail = "it was deleted too long ago: its files are being removed"
                raise ApiError(HTTPStatus.GONE, "purged", detail)
            audit.note(session, user, "experiment.undeleted", experiment_id)
        experiment = find_own(session, user, Experiment, experiment_id)
        session.refresh(experiment)
        return to_response(session, experiment, queue_snapshots, user)


REQUESTS = {
    Action.CANCEL: (DesiredState.CANCEL, Status.CANCELLED),
    Action.PAUSE: (DesiredState.PAUSE, Status.PAUSED),
    Action.RESUME: (DesiredState.RUN, Status.QUEUED),
}
"""State that an action requests, and the status in which there is nothing to do."""


def _request(
    database: Database,
    queue_snapshots: QueueSnapshots,
    user: Caller,
    experiment_id: str,
    action: Action,
) -> ExperimentOut:
    desired, already = REQUESTS[action]
    with database.transaction() as session:
        find_own(session, user, Experiment, experiment_id)
        accepted = states.request(session, experiment_id, desired)
        experiment = find(session, user, Experiment, experiment_id)
        if accepted is None and experiment.status != already:
            raise store.wrong_state(experiment)
        if accepted is not None:
            audit.note(session, user, f"experiment.{DONE[action]}", experiment_id)
        return to_response(session, experiment, queue_snapshots, user)


StateRequest = Callable[[Action], ExperimentOut]


async def _state_request(
    experiment_id: ExperimentId,
    database: DatabaseDep,
    queue_snapshots: QueueSnapshotsDep,
    user: Canceller,
) -> StateRequest:
    return partial(_request, database, queue_snapshots, user, experiment_id)


StateRequestDep = Annotated[StateRequest, Depends(_state_request)]
"""Takes an action on an experiment, and accepts that it has the status already."""


@router.post("/{experiment_id}:cancel", status_code=HTTPStatus.ACCEPTED)
def cancel(request: StateRequestDep) -> ExperimentOut:
    """Cancel an experiment: at once if it waits, within a heartbeat and the kill grace if it runs.
    An ended experiment is not changed: 409, except if it is already cancelled."""
    return request(Action.CANCEL)


@router.post("/{experiment_id}:pause", status_code=HTTPStatus.ACCEPTED)
def pause(request: StateRequestDep) -> ExperimentOut:
    """Pause an experiment. A running one saves a checkpoint and frees its slot."""
    return request(Action.PAUSE)


@router.post("/{experiment_id}:resume", status_code=HTTPStatus.ACCEPTED)
def resume(request: StateRequestDep) -> ExperimentOut:
    """Return a paused experiment to the queue. It continues from its checkpoint."""
    return request(Action.RESUME)


@router.post("/{experiment_id}:retry", status_code=HTTPStatus.ACCEPTED)
def retry(
    experiment_id: ExperimentId,
    submitted: SubmitDep,
    answer: AnswerDep,
    response: Response,
) -> ExperimentOut:
    """Queue a new experiment with the spec of one that failed or was cancelled. The Idempotency-Key
    works as for a submission."""
    (made,) = submitted(Retry(experiment_id)).outcomes
    experiment = answer(made.id)
    response.headers["Location"] = experiment.urls.self
    return experiment
