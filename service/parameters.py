"""Query parameters: what a route does not know is refused, not passed over."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from mptcore.specs import Problem
from mptcore.specs.parsing.suggestions import meant
from service.errors import invalid


# Async, though they wait for nothing: a plain function costs a change of threads.
async def free_parameters(request: Request) -> dict[str, list[str]]:
    """The query parameters that the route does not name, with all the values given."""
    named = _named(_dependant(request))
    given = request.query_params
    return {key: given.getlist(key) for key in given if key not in named}


FreeParameters = Annotated[dict[str, list[str]], Depends(free_parameters)]
"""Of a handler that takes any query parameter, and checks them itself."""


async def known_parameters(request: Request) -> None:
    """Refuses a query parameter that the route neither names nor takes as a free one."""
    dependant = _dependant(request)
    if not request.query_params or _takes_any(dependant):
        return
    named = _named(dependant)
    unknown = [key for key in request.query_params if key not in named]
    if unknown:
        raise invalid([Problem(f"/query/{key}", _not_known(key, named)) for key in unknown])


def _not_known(key: str, named: set[str]) -> str:
    known = f"the parameters are {', '.join(sorted(named))}" if named else "there are none"
    return f"not a query parameter of this route: {meant(key, named)}{known}"


def _dependant(request: Request) -> Dependant:
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    return route.dependant


def _takes_any(dependant: Dependant) -> bool:
    return any(part.call is free_parameters for part in dependant.dependencies)


def _named(dependant: Dependant) -> set[str]:
    own = {field.alias for field in dependant.query_params}
    return own.union(*map(_named, dependant.dependencies))
