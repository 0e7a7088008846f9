"""Query parameters: what a route does not know is refused, not passed over."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from mptcore.specs import Problem
from service.errors import invalid


# Async, though they wait for nothing: a plain function costs a change of threads.
async def free_parameters(request: Request) -> dict[str, str]:
    """The query parameters that the route does not name."""
    named = _named(_dependant(request))
    return {key: value for key, value in request.query_params.items() if key not in named}


FreeParameters = Annotated[dict[str, str], Depends(free_parameters)]
"""Of a handler that takes any query parameter, and checks them itself."""


async def known_parameters(request: Request) -> None:
    """Refuses a query parameter that the route neither names nor takes as a free one."""
    dependant = _dependant(request)
    if not request.query_params or _takes_any(dependant):
        return
    named = _named(dependant)
    known = f"the parameters are {', '.join(sorted(named))}" if named else "there are none"
    problems = [
        Problem(f"/query/{key}", f"not a query parameter of this route: {known}")
        for key in request.query_params
        if key not in named
    ]
    if problems:
        raise invalid(problems)


def _dependant(request: Request) -> Dependant:
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    return route.dependant


def _takes_any(dependant: Dependant) -> bool:
    return any(part.call is free_parameters for part in dependant.dependencies)


def _named(dependant: Dependant) -> set[str]:
    own = {field.alias for field in dependant.query_params}
    return own.union(*map(_named, dependant.dependencies))
