"""Query parameters: a route refuses unknown ones, and more than MAX_PARAMETERS."""

from collections import Counter
from collections.abc import Collection
from typing import Annotated, Any, get_args, get_origin

from fastapi import Depends, Path, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from mptcore.specs import Problem
from mptcore.specs.parsing.suggestions import meant
from service.refusals import THIS_VERSION, invalid

MAX_PARAMETERS = 200
"""Maximum number of query parameters of a request."""

MAX_SUGGESTIONS = 5
"""Maximum number of unknown parameters whose meaning is guessed. It takes the event loop 0.2 ms."""


# Async although it never awaits: a plain function would need a thread switch.
async def free_parameters(request: Request) -> dict[str, list[str]]:
    """Return the query parameters that the route does not name, with all values given."""
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    named = _named(route.dependant)
    free: dict[str, list[str]] = {}
    for key, value in request.query_params.multi_items():
        if key not in named:
            free.setdefault(key, []).append(value)
    return free


FreeParameters = Annotated[dict[str, list[str]], Depends(free_parameters)]
"""For a handler that takes any query parameter, and checks them itself."""


class QueryParameters:
    """The query parameters that a handler takes."""

    def __init__(self, handler: Dependant):
        self._named = _named(handler)
        self._takes_any = any(part.call is free_parameters for part in handler.dependencies)

    def check(self, request: Request) -> None:
        """Refuse too many parameters, unknown parameters, and repeated parameters of which only one
        value would be used. Raise ApiError."""
        query: bytes = request.scope["query_string"]
        if not query:
            return
        if query.count(b"&") >= MAX_PARAMETERS:
            raise invalid([Problem("/query", f"at most {MAX_PARAMETERS} parameters")])
        times = Counter(key for key, _ in request.query_params.multi_items())
        problems: list[Problem] = []
        for key, count in times.items():
            if key not in self._named and not self._takes_any:
                is_helped = len(problems) < MAX_SUGGESTIONS
                problems.append(Problem(f"/query/{key}", _not_known(key, self._named, is_helped)))
            elif count > 1 and not self._named.get(key, True):
                problems.append(Problem(f"/query/{key}", f"given {count} times, may be given once"))
        if problems:
            raise invalid(problems)


def _not_known(key: str, named: Collection[str], is_helped: bool) -> str:
    known = f"the parameters are {', '.join(sorted(named))}" if named else "there are none"
    suggestion = meant(key, named) if is_helped else ""
    return f"not a query parameter of this route in {THIS_VERSION}: {suggestion}{known}"


def _named(dependant: Dependant) -> dict[str, bool]:
    """Return the named parameters, and whether each may be given several times."""
    named = {one.alias: _is_list(one.field_info.annotation) for one in dependant.query_params}
    for part in dependant.dependencies:
        named |= _named(part)
    return named


def _is_list(annotation: Any) -> bool:
    return any(get_origin(one) is list for one in (annotation, *get_args(annotation)))


ExperimentId = Annotated[str, Path(max_length=100, description="Id of the experiment.")]
