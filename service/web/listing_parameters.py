"""Query parameters of lists of experiments."""

from datetime import datetime
from typing import Annotated

from fastapi import Depends, Query
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from service.experiments.listing import Wanted
from service.vocabulary import Status, Whose
from service.web.pagination import WhoseQuery


def _iso(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        message = "a date as 2026-01-31 or 2026-01-31T12:00:00Z"
        raise PydanticCustomError("moment", message) from None


Moment = Annotated[datetime, BeforeValidator(_iso)]
"""A date or time. A validator is needed because pydantic also accepts a bare number as seconds
since 1970."""


# Async although it never awaits: a plain function would need a thread switch.
async def wanted_experiments(
    *,
    whose: WhoseQuery = Whose.MINE,
    status: Annotated[
        list[Status], Query(default_factory=list, description="Status.", max_length=7)
    ],
    owner: Annotated[str | None, Query(max_length=200, description="Name of the owner.")] = None,
    tag: Annotated[list[str], Query(default_factory=list, max_length=50, description="Tag.")],
    name: Annotated[str | None, Query(max_length=200, description="Whole name.")] = None,
    family: Annotated[
        list[str],
        Query(default_factory=list, max_length=20, description="Family of the model."),
    ],
    q: Annotated[
        str | None,
        Query(
            max_length=200,
            description="Words that name, note, tags or id contain, in upper or lower case.",
        ),
    ] = None,
    created_after: Annotated[
        Moment | None, Query(description="Created then or later (ISO 8601, else UTC).")
    ] = None,
    created_before: Annotated[Moment | None, Query(description="Created before this time.")] = None,
    finished_after: Annotated[Moment | None, Query(description="Ended then or later.")] = None,
    finished_before: Annotated[Moment | None, Query(description="Ended before this time.")] = None,
    filter: Annotated[
        str | None,
        Query(
            max_length=2000,
            description="Comparisons joined by and, or, not. docs/api.md lists the fields.",
            examples=["metrics.lml > -61 and spec.model.latent_dim in (1, 2)"],
        ),
    ] = None,
    order_by: Annotated[
        str,
        Query(
            max_length=200,
            description="created, finished, name or metrics.NAME, then asc or desc. Experiments "
            "without a value are left out.",
            examples=["metrics.lml{seed=4} desc"],
        ),
    ] = "created desc",
) -> Wanted:
    return Wanted(**locals())


WantedDep = Annotated[Wanted, Depends(wanted_experiments)]
