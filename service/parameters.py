"""Query parameters: what a route does not know is refused, not passed over."""

from collections.abc import Collection
from typing import Annotated, Any, get_args, get_origin

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from mptcore.specs import Problem
from service.errors import invalid
from service.suggestions import meant


# Async, though they wait for nothing: a plain function costs a change of threads.
async def free_parameters(request: Request) -> dict[str, list[str]]:
    """The query parameters that the route does not name, with all the values given."""
    named = _named(_dependant(request))
    given = request.query_params
    return {key: given.getlist(key) for key in given if key not in named}


FreeParameters = Annotated[dict[str, list[str]], Depends(free_parameters)]
"""Of a handler that takes any query parameter, and checks them itself."""


async def known_parameters(request: Request) -> None:
    """Refuses a query parameter that the route neither names nor takes as a free one, and one that
    is given again where only one of its values would count."""
    given = request.query_params
    if not given:
        return
    dependant = _dependant(request)
    named, takes_any = _named(dependant), _takes_any(dependant)
    problems = []
    for key in given:
        if key not in named and not takes_any:
            problems.append(Problem(f"/query/{key}", _not_known(key, named)))
        elif not named.get(key, True) and (times := len(given.getlist(key))) > 1:
            problems.append(Problem(f"/query/{key}", f"given {times} times, may be given once"))
    if problems:
        raise invalid(problems)


def _not_known(key: str, named: Collection[str]) -> str:
    known = f"the parameters are {', '.join(sorted(named))}" if named else "there are none"
    return f"not a query parameter of this route: {meant(key, named)}{known}"


def _dependant(request: Request) -> Dependant:
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    return route.dependant


def _takes_any(dependant: Dependant) -> bool:
    return any(part.call is free_parameters for part in dependant.dependencies)


def _named(dependant: Dependant) -> dict[str, bool]:
    """Those that are named, and whether each may be given several times."""
    named = {one.alias: _is_list(one.field_info.annotation) for one in dependant.query_params}
    for part in dependant.dependencies:
        named |= _named(part)
    return named


def _is_list(annotation: Any) -> bool:
    return any(get_origin(one) is list for one in (annotation, *get_args(annotation)))
