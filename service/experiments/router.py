"""Routes that queue experiments, change them and control them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Response
from sqlalchemy.orm import Session

from mptcore.specs import SpecError, stored_spec
from service import audit
from service.bodies import JsonBody, StrictRoute
from service.database import Database
from service.dependencies import (
    Canceller,
    DatabaseDep,
    SettingsDep,
    Submitter,
    WriterDep,
)
from service.experiments import keeping, states, store
from service.experiments.acceptance import Acceptance, beside_of
from service.experiments.finding import ExperimentId, find, find_deleted, find_own
from service.experiments.models import DesiredState, Experiment, Status
from service.experiments.place import place_of_next
from service.experiments.queue_schemas import RuntimeOut
from service.experiments.reading import seen
from service.experiments.runtime import expected_runtime
from service.experiments.scene import Scenes, ScenesDep
from service.experiments.schemas import Changes, ExperimentOut, Submission, Validation
from service.experiments.sent import Sent, Unsized, whole
from service.refusals import ApiError, invalid
from service.settings import Settings
from service.users import Caller

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=StrictRoute)

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="Key of your choice. A repeated request with the same key is not done again.",
    ),
]


@router.post(
    "",
    status_code=HTTPStatus.ACCEPTED,
    responses={200: {"model": ExperimentOut, "description": "One that computed the same before"}},
)
def submit(
    sent: JsonBody[Sent],
    database: WriterDep,
    settings: SettingsDep,
    scenes: ScenesDep,
    user: Submitter,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> ExperimentOut:
    """Queue an experiment: 202. Where one that you may read has computed the same: 200 and that
    one, whose `cached_from` says so; nothing is queued, and no limit counts. With an
    Idempotency-Key, the same request sent again is answered with the experiment that the first one
    made; another request under the same key is refused."""
    with refusals(), database.transaction() as session:
        # The key comes first: what was accepted stays so, whatever has been deleted since.
        experiment = store.submitted(session, user.id, sent, idempotency_key)
        if experiment is None:
            (submission,) = whole(session, user.id, [sent])
            known = _accepted(session, settings, user.id, submission)
            key = known.cache_key(submission.spec)
            if (hit := _hit(known, submission, key)) is not None:
                return _cached(session, scenes, user, hit, response)
            experiment = store.submit(
                session,
                user.id,
                submission,
                idempotency_key,
                sent=sent if isinstance(sent, Unsized) else None,
                by=user,
                sharing=settings.share,
                memory=known.memory(submission.spec),
                unfinished=known.unfinished(submission.spec, submission.after),
                cache_key=key,
            )
        answer = seen(session, experiment, scenes, user)
    log.info("submitted", extra={"experiment_id": answer.id})
    response.headers["Location"] = answer.urls.self
    return answer


# The path of the custom method has no slash, hence no prefix that FastAPI could add it to.
custom = APIRouter(tags=["experiments"], route_class=StrictRoute)


@custom.post("/v1/experiments:validate")
def validate(
    sent: JsonBody[Sent],
    database: DatabaseDep,
    settings: SettingsDep,
    scenes: ScenesDep,
    user: Submitter,
) -> Validation:
    """Return what a submission would become. Nothing is stored."""
    with refusals(), database.snapshot() as session:
        (submission,) = whole(session, user.id, [sent])
        known = _accepted(session, settings, user.id, submission)
        memory = known.memory(submission.spec)
        hit = _hit(known, submission, known.cache_key(submission.spec))
        runtime = expected_runtime(session, submission.spec, settings.worker_silent_s)
        place = place_of_next(
            session,
            user.id,
            submission.spec.compute.device,
            submission.priority,
            memory.expected,
            scenes,
        )
    return Validation(
        spec=submission.spec,
        masks=submission.spec.mask_count(),
        points=submission.spec.point_count().total,
        memory_bytes=memory.expected,
        runtime=None if runtime is None else RuntimeOut(**asdict(runtime)),
        cached_from=hit,
        queue_position=place.position,
        queue_reason=place.reason,
        estimated_start=place.estimated_start,
        estimate=place.estimate,
    )


WEIGHTY = ("priority", "visibility", "pinned")
"""Changes whose new values are written to the audit log."""


@router.patch("/{experiment_id:id}")
def change(
    experiment_id: ExperimentId,
    changes: JsonBody[Changes],
    database: WriterDep,
    settings: SettingsDep,
    scenes: ScenesDep,
    user: Submitter,
) -> ExperimentOut:
    """Change the fields beside the spec: name, tags, note, priority, visibility, pinned."""
    wanted = changes.model_dump(exclude_unset=True)
    with refusals(), database.transaction() as session:
        experiment = find_own(session, user, experiment_id)
        store.change(session, experiment, wanted, settings.share)
        # Its texts are the owner's, and long.
        weighty = {name: wanted[name] for name in WEIGHTY if name in wanted}
        audit.note(session, user, "experiment.changed", experiment_id, fields=[*wanted], **weighty)
        session.flush()
        return seen(session, experiment, scenes, user)


@router.delete("/{experiment_id:id}", status_code=HTTPStatus.NO_CONTENT)
def delete(experiment_id: ExperimentId, database: WriterDep, user: Canceller) -> None:
    """Delete an experiment. It is hidden at once, and its files are removed later. A waiting one is
    cancelled first. A running one must be cancelled before, and a pinned one unpinned: 409.
    Accepted runs that start from it can still do so."""
    with database.transaction() as session:
        experiment = find_own(session, user, experiment_id)
        if experiment.pinned:
            detail = "it is pinned: set pinned to false first"
            raise ApiError(HTTPStatus.CONFLICT, "pinned", detail)
        if not keeping.remove(session, experiment):
            detail = "it is running: cancel it first, and delete it once it has ended"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        audit.note(session, user, "experiment.deleted", experiment_id)


@router.post("/{experiment_id}:undelete")
def undelete(
    experiment_id: ExperimentId,
    database: WriterDep,
    settings: SettingsDep,
    scenes: ScenesDep,
    user: Canceller,
) -> ExperimentOut:
    """Bring back an experiment that was deleted, as long as its files are kept
    (`MPT_PURGE_AFTER_S`). What waited when it was deleted is cancelled, and may be retried."""
    with database.transaction() as session:
        if find_deleted(session, user, experiment_id) is not None:
            if not keeping.restore(session, experiment_id, settings.purge_after_s):
                detail = "it was deleted too long ago: its files are being removed"
                raise ApiError(HTTPStatus.GONE, "purged", detail)
            audit.note(session, user, "experiment.undeleted", experiment_id)
        experiment = find_own(session, user, experiment_id)
        session.refresh(experiment)
        return seen(session, experiment, scenes, user)


@router.post("/{experiment_id}:cancel", status_code=HTTPStatus.ACCEPTED)
def cancel(
    experiment_id: ExperimentId, database: WriterDep, scenes: ScenesDep, user: Canceller
) -> ExperimentOut:
    """Cancel an experiment: at once if it waits, within a heartbeat and the kill grace if it runs.
    An ended experiment is not changed: 409, except if it is already cancelled."""
    return _request(database, scenes, user, experiment_id, DesiredState.CANCEL, Status.CANCELLED)


@router.post("/{experiment_id}:pause", status_code=HTTPStatus.ACCEPTED)
def pause(
    experiment_id: ExperimentId, database: WriterDep, scenes: ScenesDep, user: Canceller
) -> ExperimentOut:
    """Pause an experiment. A running one saves a checkpoint and frees its slot."""
    return _request(database, scenes, user, experiment_id, DesiredState.PAUSE, Status.PAUSED)


@router.post("/{experiment_id}:resume", status_code=HTTPStatus.ACCEPTED)
def resume(
    experiment_id: ExperimentId, database: WriterDep, scenes: ScenesDep, user: Canceller
) -> ExperimentOut:
    """Return a paused experiment to the queue. It continues from its checkpoint."""
    return _request(database, scenes, user, experiment_id, DesiredState.RUN, Status.QUEUED)


@router.post("/{experiment_id}:retry", status_code=HTTPStatus.ACCEPTED)
def retry(
    experiment_id: ExperimentId,
    database: WriterDep,
    settings: SettingsDep,
    scenes: ScenesDep,
    user: Submitter,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> ExperimentOut:
    """Queue a new experiment with the spec of one that failed or was cancelled. The Idempotency-Key
    works as for a submission."""
    with refusals(), database.transaction() as session:
        old = find_own(session, user, experiment_id)
        if old.status not in (Status.FAILED, Status.CANCELLED):
            detail = f"only what failed or was cancelled is retried; this is {old.status}"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        again = store.retried(session, old, idempotency_key)
        if again is None:
            # What was shared when the old one was submitted may be so no longer.
            unfinished, key = _retryable(session, settings, old)
            again = store.retry(
                session,
                old,
                idempotency_key,
                by=user,
                sharing=settings.share,
                unfinished=unfinished,
                cache_key=key,
            )
        answer = seen(session, again, scenes, user)
    response.headers["Location"] = answer.urls.self
    return answer


DONE = {
    DesiredState.CANCEL: "cancelled",
    DesiredState.PAUSE: "paused",
    DesiredState.RUN: "resumed",
}
"""Names of the actions in the audit log."""

MAY = {
    Status.QUEUED: "it may be paused or cancelled",
    Status.DISPATCHED: "it may be paused or cancelled",
    Status.RUNNING: "it ends soon, and may then be retried or deleted",
    Status.PAUSED: "it may be resumed, cancelled or deleted",
    Status.SUCCEEDED: "it has ended, and may only be deleted",
    Status.FAILED: "it has ended, and may be retried or deleted",
    Status.CANCELLED: "it has ended, and may be retried or deleted",
}
"""Actions that the owner may request, by status."""


def _request(
    database: Database,
    scenes: Scenes,
    user: Caller,
    experiment_id: str,
    desired: DesiredState,
    already: Status,
) -> ExperimentOut:
    with database.transaction() as session:
        find_own(session, user, experiment_id)
        accepted = states.request(session, experiment_id, desired)
        experiment = find(session, user, experiment_id)
        if accepted is None and experiment.status != already:
            what = "is being cancelled" if experiment.status == Status.RUNNING else "is"
            detail = f"the experiment {what} {experiment.status}: {MAY[Status(experiment.status)]}"
            raise ApiError(HTTPStatus.CONFLICT, "wrong_state", detail)
        if accepted is not None:
            audit.note(session, user, f"experiment.{DONE[desired]}", experiment_id)
        return seen(session, experiment, scenes, user)


def _accepted(
    session: Session, settings: Settings, owner_id: int, submission: Submission
) -> Acceptance:
    """Return the checks of an acceptable submission. Raises ApiError."""
    spec = submission.spec
    known = Acceptance(session, settings, owner_id, [spec], submission.after)
    if problems := known.submission_problems(spec, submission.after):
        raise invalid(problems)
    return known


def _retryable(
    session: Session, settings: Settings, old: Experiment
) -> tuple[list[str], str | None]:
    """Return what a retry of an experiment waits for, and its cache key. Raises ApiError:
    references of the old one may be gone or no longer shared."""
    spec, after = stored_spec(old.spec), old.comes_after or []
    known = Acceptance(session, settings, old.owner_id, [spec], after)
    if problems := known.gone(spec, after):
        raise invalid(problems)
    return known.unfinished(spec, after), known.cache_key(spec)


def _hit(known: Acceptance, submission: Submission, key: str | None) -> str | None:
    return known.hits([key]).id_for(key, beside_of(submission)) if submission.cache else None


def _cached(
    session: Session, scenes: Scenes, user: Caller, experiment_id: str, response: Response
) -> ExperimentOut:
    """Return the earlier experiment that answers a submission."""
    answer = seen(session, find(session, user, experiment_id), scenes, user)
    response.status_code = HTTPStatus.OK
    response.headers["Location"] = answer.urls.self
    return answer.model_copy(update={"cached_from": experiment_id})


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except SpecError as error:
        raise invalid(error) from None
    except store.Refused as refusal:
        jumps = refusal.reason == "may_not_jump"
        status = HTTPStatus.FORBIDDEN if jumps else HTTPStatus.CONFLICT
        raise ApiError(status, refusal.reason, str(refusal)) from None
    except store.KeyReused:
        detail = "another request was sent under this Idempotency-Key"
        raise ApiError(HTTPStatus.CONFLICT, "idempotency_key_reused", detail) from None
