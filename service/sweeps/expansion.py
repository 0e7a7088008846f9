"""Expand a spec and the swept fields into the specs of the points. Fields are dotted paths into the
spec: `model.latent_dim`, `seeds`. A value replaces the value in the spec; missing objects on the
path are created."""

import itertools
import json
import math
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from mptcore.specs import Problem, SpecError
from mptcore.specs.base import Seed, reject
from mptcore.specs.parsing.json_text import pointer_token
from mptcore.specs.parsing.problems import UNKNOWN_FIELD
from service.long_lists import first_errors
from service.refusals import invalid
from service.schemas import RequestModel

MAX_POINTS = 10_000
MAX_FIELDS = 100
"""Maximum number of different fields that the points of a sweep set: each is a column of the
table."""
MAX_STORED_BYTES = 32 * 2**20
"""Maximum bytes of the specs that one request stores: each point stores its whole spec."""

FieldPath = Annotated[
    str, Field(pattern=r"^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*){0,9}$", max_length=200)
]
Listed = Annotated[dict[FieldPath, Any], Field(max_length=MAX_FIELDS)]
Values = Annotated[list[Any], Field(min_length=1, max_length=MAX_POINTS)]


class Range(RequestModel):
    """Numbers from `low` to `high`, both included. If both are integers, integers are drawn."""

    low: int | float
    """Lowest value."""
    high: int | float
    """Highest value."""
    scale: Literal["linear", "log"] = "linear"
    """`linear` draws values evenly, `log` their logarithms."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.low >= self.high:
            reject([Problem("/high", f"above low, {self.low}, not {self.high}")])
        if self.scale == "log" and self.low <= 0:
            reject([Problem("/low", f"above 0 for scale log, not {self.low}")])
        return self

    def value(self, share: float) -> int | float:
        """Return the value at a share, from 0 to 1, of the range."""
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        low, high = (self.low, self.high + 1) if whole else (self.low, self.high)
        if self.scale == "log":
            found = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            found = low + share * (high - low)
        return min(math.floor(found), self.high) if whole else min(max(found, self.low), self.high)


class RandomDraws(RequestModel):
    """Points that are drawn at random, each field independently."""

    n: Annotated[int, Field(ge=1, le=MAX_POINTS)]
    """Number of points."""
    seed: Seed = 0
    """Seed of the draws. The same seed gives the same points."""
    fields: Annotated[dict[FieldPath, Values | Range], Field(min_length=1, max_length=MAX_FIELDS)]
    """For each field, by its path, a list of values or a range."""


class Points(RequestModel):
    """Points of a sweep: exactly one of `grid`, `list` and `random`."""

    grid: Annotated[dict[FieldPath, Values], Field(min_length=1, max_length=MAX_FIELDS)] | None = (
        None
    )
    """For each field, by its path, its values: all combinations, the last field varying fastest."""
    listed: Annotated[
        Annotated[list[Listed], first_errors(Listed)] | None,
        Field(alias="list", min_length=1, max_length=MAX_POINTS),
    ] = None
    """A list of points. Each point gives values for fields, by their paths."""
    random: RandomDraws | None = None
    """Points that are drawn at random."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [one for one in (self.grid, self.listed, self.random) if one is not None]
        if len(given) != 1:
            reject([Problem("", "give exactly one of grid, list and random")])
        if self.count() > MAX_POINTS:
            reject([Problem("/grid", f"at most {MAX_POINTS} points, not {self.count()}")])
        where = "/grid" if self.grid else "/random/fields" if self.random else "/list"
        if problems := field_problems(self.fields(), where):
            reject(problems)
        return self

    def fields(self) -> list[str]:
        """Return the distinct paths that are swept."""
        if self.grid is not None:
            return [*self.grid]
        if self.random is not None:
            return [*self.random.fields]
        return [*dict.fromkeys(path for point in self.listed or () for path in point)]

    def estimated_bytes(self, base: Mapping[str, Any]) -> int:
        """Estimate the bytes of the specs of all points without creating them."""
        number = self.count()
        if self.grid is not None:
            values = sum(number // len(some) * _size(some) for some in self.grid.values())
        elif self.random is not None:
            values = number * sum(_largest(one) for one in self.random.fields.values())
        else:
            values = _size(self.listed)
        return number * _size(base) + values

    def count(self) -> int:
        """Return the number of points."""
        if self.grid is not None:
            return math.prod(map(len, self.grid.values()))
        return self.random.n if self.random is not None else len(self.listed or ())

    def points(self) -> Iterator["Point"]:
        """Yield the points with their places in the request."""
        if self.grid is not None:
            yield from _grid(self.grid)
        elif self.random is not None:
            yield from _drawn(self.random)
        for i, values in enumerate(self.listed or ()):
            yield Point(values, {path: f"/list/{i}{pointer_token(path)}" for path in values})


def field_problems(paths: Collection[str], pointer: str) -> list[Problem]:
    """Return the problems of the fields of a sweep: too many, or one field within another."""
    if len(paths) > MAX_FIELDS:
        detail = f"a sweep sets at most {MAX_FIELDS} different fields, not {len(paths)}"
        return [Problem(pointer, detail)]
    problems = []
    outer = None
    for parts in sorted(path.split(".") for path in paths):  # nested fields follow
        if outer is not None and parts[: len(outer)] == outer:
            detail = f"{'.'.join(parts)} lies within {'.'.join(outer)}, which is swept itself"
            problems.append(Problem(pointer, detail))
        else:
            outer = parts
    return problems


@dataclass(frozen=True)
class GridPointers(Mapping[str, str]):
    """Positions in the request of a point of a grid. They are made when they are needed: 10,000
    points of 100 fields with long paths would take 200 MB."""

    numbers: Mapping[str, int]
    """Number of each field, by its path."""
    places: Sequence[int]
    """Index of the value of each field."""

    def __getitem__(self, path: str) -> str:
        return f"/grid{pointer_token(path)}/{self.places[self.numbers[path]]}"

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class Point:
    """Values of the swept fields, and their positions in the request."""

    values: Mapping[str, Any]
    pointers: Mapping[str, str]

    @cached_property
    def text(self) -> str:
        """The values in short. A point may have 100 problems, and each names it."""
        return ", ".join(f"{path}={_short(value)}" for path, value in self.values.items())

    @cached_property
    def places(self) -> Mapping[str, str]:
        """Positions in the request by the pointer of the field in a submission."""
        fields = ("".join(map(pointer_token, path.split("."))) for path in self.pointers)
        return {
            f"/spec{field}": self.pointers[path]
            for field, path in zip(fields, self.pointers, strict=True)
        }


def _size(value: Any) -> int:
    return len(json.dumps(value))


def _largest(among: list[Any] | Range) -> int:
    return 20 if isinstance(among, Range) else max(map(_size, among))


def _grid(grid: Mapping[str, Sequence[Any]]) -> Iterator[Point]:
    numbers = {path: i for i, path in enumerate(grid)}
    for places in itertools.product(*(range(len(values)) for values in grid.values())):
        values = {path: some[i] for (path, some), i in zip(grid.items(), places, strict=True)}
        yield Point(values, GridPointers(numbers, places))


def _drawn(draws: RandomDraws) -> Iterator[Point]:
    """Yield random points. Only `random()` is used, because it is the same in every version of
    Python."""
    generator = random.Random(draws.seed)
    pointers = {path: f"/random/fields{pointer_token(path)}" for path in draws.fields}
    for _ in range(draws.n):
        values = {path: _one_of(among, generator.random()) for path, among in draws.fields.items()}
        yield Point(values, pointers)


def _one_of(among: list[Any] | Range, share: float) -> Any:
    if isinstance(among, Range):
        return among.value(share)
    return among[math.floor(share * len(among))]


def _short(value: Any) -> str:
    """Return the first 40 characters of a value, which may have a million."""
    if isinstance(value, str):
        value = value[:40]
    text = ""
    for piece in json.JSONEncoder().iterencode(value):
        text += piece
        if len(text) > 40:
            return f"{text[:37]}..."
    return text


def check_stored(size: int, points: int) -> None:
    """Raise ApiError if the specs of this number of points need more bytes than a request may
    store."""
    if size > MAX_STORED_BYTES:
        detail = (
            f"the specs of {points} points take {math.ceil(size / 2**20)} MiB or more; a request "
            f"may store {MAX_STORED_BYTES // 2**20} MiB: send fewer points, or a smaller spec"
        )
        raise invalid([Problem("", detail)])


@dataclass(frozen=True, slots=True)
class PointProblem(Problem):
    """A problem of a point, whose detail begins with the point."""

    reason: str
    """The rest of the detail."""


def in_request(number: int, point: Point, problem: Problem) -> Problem:
    """Translate a problem of a point's submission to its place in the request: the value of a swept
    field, or the base spec. An unknown field is a problem of a grid, not of each of its values."""
    if not problem.pointer.startswith("/spec"):
        return problem
    swept = point.places.get(problem.pointer, "")
    if swept.startswith("/grid") and problem.detail.startswith(UNKNOWN_FIELD):
        return Problem(swept.rpartition("/")[0], problem.detail)
    detail = f"point {number} ({point.text}): {problem.detail}"
    field = problem.pointer
    while field and field not in point.places:
        field = field.rpartition("/")[0]
    place = point.places.get(field, field)
    return PointProblem(place + problem.pointer.removeprefix(field), detail, problem.detail)


def without_repeats(problems: Iterable[Problem]) -> list[Problem]:
    """Replace the problems that many values of a swept field have for the same reason by one, with
    all of these values."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for number, problem in enumerate(problems):
        key = problem.pointer, str(number)
        swept = SWEPT_VALUE.fullmatch(problem.pointer)
        if swept and isinstance(problem, PointProblem):
            allowed = problem.reason.rpartition(NOT)[0] or problem.reason
            key = f"{swept['before']}/*{swept['after']}", allowed
        groups.setdefault(key, []).append(problem)
    return [_together(group) if len(group) > 1 else group[0] for group in groups.values()]


SWEPT_VALUE = re.compile(r"(?P<before>/list|/grid/[^/]+)/\d+(?P<after>(/.*)?)")
"""Position of a value of a swept field."""
NOT = ", not "
"""Begins the part of a reason that names the wrong value."""
CURE = re.compile(": write |; did you mean ")
"""Begins advice after the wrong value."""
MAX_NAMED = 10
"""Maximum number of wrong values that are named."""


def _together(problems: Sequence[Problem]) -> Problem:
    """Return one problem for those of several values of a field. If they are not the value of a
    grid as a whole, it is at the first point."""
    first = problems[0]
    swept = SWEPT_VALUE.fullmatch(first.pointer)
    assert swept is not None
    if swept["before"] == "/list" or swept["after"]:
        return Problem(first.pointer, f"{first.detail}; and {len(problems) - 1} more like it")
    reasons = [problem.reason for problem in problems if isinstance(problem, PointProblem)]
    allowed, is_named, _ = reasons[0].rpartition(NOT)
    if not is_named:
        return Problem(swept["before"], f"{len(problems)} values: {reasons[0]}")
    wrong = [CURE.split(reason.rpartition(NOT)[2])[0] for reason in reasons]
    return Problem(swept["before"], f"{allowed}{NOT}{_listed(wrong)}")


def _listed(values: Sequence[str]) -> str:
    """Return values in short: `10 to 20` for consecutive integers."""
    if all(value.isdecimal() for value in values):
        numbers = [*map(int, values)]
        if numbers == [*range(numbers[0], numbers[0] + len(numbers))]:
            return f"{values[0]} to {values[-1]}"
    more = f" and {len(values) - MAX_NAMED} more" if len(values) > MAX_NAMED else ""
    return f"{', '.join(values[:MAX_NAMED])}{more}"


def with_values(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the spec with these values."""
    spec = dict(base)
    for path, value in values.items():
        *parents, last = path.split(".")
        part = spec
        for depth, name in enumerate(parents, 1):
            below = part.get(name)
            if not isinstance(below, dict | None):
                pointer = "".join(map(pointer_token, parents[:depth]))
                raise SpecError([Problem(pointer, f"not an object, so {path} cannot be set")])
            part[name] = dict(below or {})
            part = part[name]
        part[last] = value
    return spec
