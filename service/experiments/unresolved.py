"""Submissions as they are sent. A spec may omit the sizes of its upload: the service knows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, ValidationError
from sqlalchemy.orm import Session

from mptcore.specs import Problem, SpecError, spec_error
from service.datasets.sizes import Uploads, leaves_out_sizes
from service.experiments.preparation import Entry, Submissions
from service.experiments.schemas import Submission
from service.refusals import invalid


@dataclass(frozen=True)
class UnresolvedSubmission:
    """The body of a submission whose spec omits `n` or `dim` of its upload. It is validated once
    these are known."""

    body: dict[str, Any]


def _read(body: Any) -> Submission | UnresolvedSubmission:
    unresolved = isinstance(body, dict) and leaves_out_sizes(body.get("spec"))
    return UnresolvedSubmission(body) if unresolved else Submission.model_validate(body)


SubmissionBody = Annotated[
    Submission | UnresolvedSubmission,
    PlainValidator(_read, json_schema_input_type=Submission),
    PlainSerializer(lambda sent: sent),  # else the document describes UnresolvedSubmission too
]


def resolve_sizes(
    session: Session,
    owner_id: int,
    sent: Sequence[Submission | UnresolvedSubmission],
    pointer: str = "",
) -> Submissions:
    """Return submissions with the missing sizes. `pointer` is the place of each in the request,
    with `{}` for its number. Raises ApiError."""
    uploads = Uploads(session, owner_id)
    entries, problems, count = [], list[Problem](), 0
    for number, one in enumerate(sent):
        place = pointer.format(number)
        try:
            submission = one if isinstance(one, Submission) else _resolved(one.body, uploads)
        except SpecError as error:
            problems += error.within(place).problems
            count += error.count
        else:
            entries.append(Entry(submission, partial(_within, place)))
    if problems:
        raise invalid(SpecError(problems, count))
    return Submissions(owner_id, entries)


def _within(pointer: str, problem: Problem) -> Problem:
    return Problem(pointer + problem.pointer, problem.detail)


def _resolved(sent: dict[str, Any], uploads: Uploads) -> Submission:
    try:
        body = {**sent, "spec": uploads.with_sizes(sent["spec"])}
        return Submission.model_validate(body)
    except ValidationError as error:
        raise spec_error(error.errors(include_url=False), body, Submission) from None
    except SpecError as error:
        raise error.within("/spec") from None
