"""Base classes of request and response bodies. The docstring below a field is its description in
/openapi.json."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from mptcore.specs import Spec


class RequestModel(Spec):
    """A request body, as strict as a spec."""


class ResponseModel(BaseModel):
    """A response body."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Page(ResponseModel):
    """A page of a list."""

    next_cursor: str | None
    """Pass it as `cursor` to get the next page. null on the last page."""


Line = Annotated[str, Field(min_length=1, max_length=200)]
