"""Check the names and labels in a request for curves. A name or label that no series has is an
error, not an empty answer."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from http import HTTPStatus

from mptcore.protocol.records import LABELS, SERIES
from mptcore.specs import Problem
from service.refusals import ApiError, invalid

Labels = Mapping[str, object]
Wanted = Mapping[str, Collection[str]]
"""Accepted values of each label."""


def check_selection(
    known: Sequence[tuple[str, Labels]],
    ended: bool,
    names: Sequence[str] | None,
    wanted: Wanted,
    where: str = "/query",
) -> None:
    """Raises ApiError for unknown names or labels. `known` are the names and labels of the series
    recorded so far. An experiment that has not ended may still record any series and other values
    of a label. `where` is the place of the labels in the request."""
    for name in names or ():
        if all(one != name for one, _ in known) and (ended or name not in SERIES):
            raise _no_series(name, dict.fromkeys(one for one, _ in known) if ended else SERIES)
    named = [labels for one, labels in known if names is None or one in names]
    accepted = {key: frozenset(values) for key, values in wanted.items()}
    what = f"the series {', '.join(names)}" if names else "these series"
    keys = {key for labels in named for key in labels} if named else set(LABELS)
    if unknown := [key for key in wanted if key not in keys]:
        have = ", ".join(sorted(keys)) or "none"
        detail = f"not a label of {what}: there are {have}"
        raise invalid([Problem(f"{where}/{key}", detail) for key in unknown])
    if ended and wanted and not any(matches(labels, accepted) for labels in named):
        there_are = "; ".join(_first(_listed(labels) for labels in named)) or "none"
        asked = ", ".join(f"{key}={' or '.join(values)}" for key, values in wanted.items())
        of = f" {', '.join(names)}" if names else ""
        detail = f"no series{of} has {asked}: there are {there_are}"
        raise ApiError(HTTPStatus.NOT_FOUND, "no_such_series", detail)


MAX_LISTED = 20


def _first(listed: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(listed))[:MAX_LISTED]


def matches(labels: Labels, wanted: Wanted) -> bool:
    """Return whether labels have accepted values, compared as text."""
    return all(str(labels.get(key)) in values for key, values in wanted.items())


def _no_series(name: str, names: Sequence[str] | Mapping[str, None]) -> ApiError:
    have = f"the series are {', '.join(names)}" if names else "it has recorded none"
    return ApiError(HTTPStatus.NOT_FOUND, "no_such_series", f"there is no series {name}: {have}")


def _listed(labels: Labels) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
