"""The route that takes many experiments at once, and what it shares with sweeps: accepting many."""

import hashlib
from collections.abc import Sequence
from http import HTTPStatus

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from service.bodies import LargeRoute
from service.dependencies import SettingsDep, Submitter, WriterDep
from service.errors import invalid
from service.experiments import many, store
from service.experiments.acceptance import Acceptance
from service.experiments.many import New
from service.experiments.router import IdempotencyKey, refusals
from service.experiments.schemas import Submission
from service.settings import Settings
from service.sweeps.schemas import Batch, BatchOut, Made

router = APIRouter(tags=["experiments"], route_class=LargeRoute)


@router.post("/v1/experiments:batch", status_code=HTTPStatus.ACCEPTED)
def submit_batch(
    batch: Batch,
    database: WriterDep,
    settings: SettingsDep,
    user: Submitter,
    idempotency_key: IdempotencyKey = None,
) -> BatchOut:
    """Queue up to a thousand experiments: all, or none where one is refused. The Idempotency-Key is
    of the whole request."""
    with refusals(), database.transaction() as session:
        kept = many.kept_request(session, user.id, idempotency_key, sha256_of("batch", batch))
        ids = list(kept.made) if kept else []
        if not ids:
            new = _accepted(session, settings, user.id, batch.experiments)
            ids = many.submit(session, user.id, new, by=user, sharing=settings.share)
            if kept:
                kept.made = ids
    return BatchOut(items=[Made(id=one, url=f"/v1/experiments/{one}") for one in ids])


def sha256_of(what: str, request: BaseModel) -> str:
    """What tells one request from another under the same idempotency key."""
    return hashlib.sha256(f"{what} {request.model_dump_json()}".encode()).hexdigest()


def _accepted(
    session: Session, settings: Settings, owner_id: int, submissions: Sequence[Submission]
) -> list[New]:
    specs = [one.spec for one in submissions]
    after = {one for submission in submissions for one in submission.after}
    known = Acceptance(session, settings, owner_id, specs, after)
    problems = [
        Problem(f"/experiments/{i}{problem.pointer}", problem.detail)
        for i, one in enumerate(submissions)
        for problem in known.submission_problems(one.spec, one.after)
    ]
    if problems:
        raise invalid(problems)
    return [_new(known, one) for one in submissions]


def _new(known: Acceptance, one: Submission) -> New:
    unfinished = known.unfinished(one.spec, one.after)
    return New(store.columns_of(one, known.memory(one.spec), unfinished), unfinished)
