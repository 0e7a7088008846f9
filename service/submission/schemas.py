"""Bodies of submissions: one experiment, or a batch. A spec may omit the sizes of its upload: the
service knows them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator

from mptcore.specs.parsing.long_lists import first_errors
from service.datasets.sizes import leaves_out_sizes
from service.experiments.schemas import Submission
from service.schemas import RequestModel, ResponseModel

MAX_TOGETHER = 1000


@dataclass(frozen=True, slots=True)
class UnresolvedSubmission:
    """The body of a submission whose spec is not complete yet. It is validated once the sizes of
    its upload are known."""

    body: dict[str, Any]
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of a sweep's point, which go into the spec, by their paths."""


def _read(body: Any) -> Submission | UnresolvedSubmission:
    unresolved = isinstance(body, dict) and leaves_out_sizes(body.get("spec"))
    return UnresolvedSubmission(body) if unresolved else Submission.model_validate(body)


SubmissionBody = Annotated[
    Submission | UnresolvedSubmission,
    PlainValidator(_read, json_schema_input_type=Submission),
    PlainSerializer(lambda sent: sent),  # else the document describes UnresolvedSubmission too
]


class Batch(RequestModel):
    """Experiments to queue, all or none."""

    experiments: Annotated[
        list[SubmissionBody],
        Field(min_length=1, max_length=MAX_TOGETHER),
        first_errors(SubmissionBody),
    ]
    """Experiments, to be submitted in this order, all or none."""


class Made(ResponseModel):
    """An experiment of a batch."""

    id: str
    """Id of the experiment."""
    url: str
    """URL of the experiment."""
    cached_from: str | None
    """The same id, if the experiment existed before. null: it is new."""


class BatchOut(ResponseModel):
    """Experiments of a batch."""

    items: list[Made]
    """Experiments, in the order of the request."""
