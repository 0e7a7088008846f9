"""The batch route, and the functions that it shares with sweeps."""

import hashlib
from collections.abc import Sequence
from http import HTTPStatus

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from service.bodies import JsonBody, LargeRoute
from service.dependencies import SettingsDep, Submitter, WriterDep
from service.experiments import many, store
from service.experiments.acceptance import Acceptance, beside_of
from service.experiments.many import New
from service.experiments.router import IdempotencyKey, refusals
from service.experiments.schemas import Submission
from service.experiments.sent import whole
from service.refusals import invalid
from service.settings import Settings
from service.sweeps.schemas import Batch, BatchOut, Made

router = APIRouter(tags=["experiments"], route_class=LargeRoute)


@router.post("/v1/experiments:batch", status_code=HTTPStatus.ACCEPTED)
def submit_batch(
    batch: JsonBody[Batch],
    database: WriterDep,
    settings: SettingsDep,
    user: Submitter,
    idempotency_key: IdempotencyKey = None,
) -> BatchOut:
    """Queue up to a thousand experiments: all, or none if one is refused. The Idempotency-Key
    applies to the whole request."""
    with refusals(), database.transaction() as session:
        kept = many.kept_request(session, user.id, idempotency_key, sha256_of("batch", batch))
        if kept and kept.made:
            return BatchOut.model_validate({"items": kept.made})
        submissions = whole(session, user.id, batch.experiments, lambda i: f"/experiments/{i}")
        wanted = _accepted(session, settings, user.id, submissions)
        ids = many.submit(session, user.id, wanted, by=user, sharing=settings.share)
        answer = BatchOut(items=[_made(*pair) for pair in zip(ids, wanted, strict=True)])
        if kept and any(isinstance(one, New) for one in wanted):
            many.keep(session, kept, answer.model_dump()["items"])
        elif kept:  # the same request finds the same, however often it is sent
            session.delete(kept)
    return answer


def _made(experiment_id: str, wanted: New | str) -> Made:
    there = isinstance(wanted, str)
    url = f"/v1/experiments/{experiment_id}"
    return Made(id=experiment_id, url=url, cached_from=experiment_id if there else None)


def sha256_of(what: str, request: BaseModel) -> str:
    """Return a digest that distinguishes requests with the same idempotency key."""
    return hashlib.sha256(f"{what} {request.model_dump_json()}".encode()).hexdigest()


def _accepted(
    session: Session, settings: Settings, owner_id: int, submissions: Sequence[Submission]
) -> list[New | str]:
    """Return the experiments to create, and the ids of existing ones. Raises ApiError."""
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
    keys = [known.cache_key(spec) for spec in specs]
    hits = known.hits(key for one, key in zip(submissions, keys, strict=True) if one.cache)
    return [
        (one.cache and hits.id_for(key, beside_of(one))) or _new(known, one, key)
        for one, key in zip(submissions, keys, strict=True)
    ]


def _new(known: Acceptance, one: Submission, cache_key: str | None) -> New:
    unfinished = known.unfinished(one.spec, one.after)
    columns = store.columns_of(one, known.memory(one.spec), unfinished, cache_key)
    return New(columns, unfinished)
