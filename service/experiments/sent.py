"""Submissions as they are sent: what a spec leaves out of its upload's sizes is filled in before
anyone looks at it. Under an idempotency key a request is what was sent."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, ValidationError
from sqlalchemy.orm import Session

from mptcore.specs import Problem, SpecError, spec_error
from service.datasets.sizes import Uploads, leaves_out_sizes
from service.experiments.schemas import Submission


@dataclass(frozen=True)
class Unsized:
    """A submission whose spec omits `n` or `dim` of its upload."""

    body: dict[str, Any]

    @property
    def text(self) -> str:
        return json.dumps(self.body, sort_keys=True)


def _sent(body: Any) -> Submission | Unsized:
    unsized = isinstance(body, dict) and leaves_out_sizes(body.get("spec"))
    return Unsized(body) if unsized else Submission.model_validate(body)


Sent = Annotated[
    Submission | Unsized,
    PlainValidator(_sent, json_schema_input_type=Submission),
    PlainSerializer(lambda sent: sent.text if isinstance(sent, Unsized) else sent),
]


def whole(
    session: Session,
    owner_id: int,
    sent: Sequence[Submission | Unsized],
    pointer: Callable[[int], str] = lambda number: "",
) -> list[Submission]:
    """Return submissions with the missing sizes filled in. Raises SpecError. `pointer` is the place
    of each in the request."""
    uploads = Uploads(lambda: nullcontext(session), owner_id)
    made, problems, count = [], list[Problem](), 0
    for number, one in enumerate(sent):
        try:
            made.append(_whole(one, uploads))
        except SpecError as error:
            problems += error.within(pointer(number)).problems
            count += error.count
    if problems:
        raise SpecError(problems, count)
    return made


def _whole(one: Submission | Unsized, uploads: Uploads) -> Submission:
    if isinstance(one, Submission):
        return one
    try:
        body = {**one.body, "spec": uploads.with_sizes(one.body["spec"])}
        return Submission.model_validate(body)
    except ValidationError as error:
        raise spec_error(error.errors(include_url=False), body, Submission) from None
    except SpecError as error:
        raise error.within("/spec") from None
