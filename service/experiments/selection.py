"""Whether there is what a reader of curves asks for: a name or a label that no series has is an
error of the reader's, not an empty answer."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

from mptcore.protocol.records import LABELS, SERIES
from mptcore.specs import Problem
from service.errors import ApiError, invalid
from service.experiments.states import is_terminal

Labels = Mapping[str, object]


def check_selection(
    known: Sequence[tuple[str, Labels]], status: str, name: str, wanted: Mapping[str, str]
) -> None:
    """`known`: the names and labels of the series recorded so far. What has not ended may yet
    record any series, and more values of a label. Raises ApiError."""
    ended = is_terminal(status)
    named = [labels for one, labels in known if one == name]
    if not named and (ended or name not in SERIES):
        raise _no_series(name, dict.fromkeys(one for one, _ in known) if ended else SERIES)
    keys = {key for labels in named for key in labels} if named else set(LABELS)
    if unknown := [key for key in wanted if key not in keys]:
        have = ", ".join(sorted(keys)) or "none"
        detail = f"not a label of the series {name}, which has {have}"
        raise invalid([Problem(f"/query/{key}", detail) for key in unknown])
    if ended and not any(matches(labels, wanted) for labels in named):
        there_are = "; ".join(_listed(labels) for labels in named[:MOST_LISTED])
        detail = f"no series {name} has {_listed(wanted)}: there are {there_are}"
        raise ApiError(HTTPStatus.NOT_FOUND, "no_such_series", detail)


MOST_LISTED = 20


def matches(labels: Labels, wanted: Mapping[str, str]) -> bool:
    """Whether labels have the wanted values, compared as text."""
    return all(str(labels.get(key)) == value for key, value in wanted.items())


def _no_series(name: str, names: Sequence[str] | Mapping[str, None]) -> ApiError:
    have = f"the series are {', '.join(names)}" if names else "it has recorded none"
    return ApiError(HTTPStatus.NOT_FOUND, "no_such_series", f"there is no series {name}: {have}")


def _listed(labels: Labels) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
