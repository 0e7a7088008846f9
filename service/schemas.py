"""Base classes of request and response bodies. The docstring below a field is its description in
/openapi.json."""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from mptcore.specs import Spec

MAX_BODY_BYTES = 256 * 1024
"""Maximum size of a request body, and of the spec of an experiment of a sweep."""


class RequestModel(Spec):
    """A request body, as strict as a spec."""


class ResponseModel(BaseModel):
    """A response body."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    @classmethod
    def of(cls, row: object, **others: Any) -> Self:
        """Return the body of a row: fields of the same names as its attributes, and others."""
        same = {name: getattr(row, name) for name in cls.model_fields if name not in others}
        return cls(**same, **others)


class Page(ResponseModel):
    """A page of a list."""

    next_cursor: str | None
    """Pass it as `cursor` to get the next page. null on the last page."""


def _date(value: Any) -> Any:
    return datetime.fromtimestamp(value, UTC) if isinstance(value, float) else value


Moment = Annotated[datetime, BeforeValidator(_date)]
"""A date and time with a time zone. A float is a time of the database."""
Line = Annotated[str, Field(min_length=1, max_length=200)]
