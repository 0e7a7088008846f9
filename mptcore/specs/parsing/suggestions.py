"""Suggestions for misspelled names, and for fields that were given elsewhere."""

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import Literal, get_args, get_origin

from pydantic import BaseModel

from mptcore.specs.outside import models_of

MAX_LENGTH = 100
"""Maximum length of a misspelled name for which a known name is suggested. The search takes a time
that grows with its square."""


def meant(given: str, known: Collection[str], before: str = "") -> str:
    """Return a question with the closest known name, and a space, or nothing. `before` precedes the
    name."""
    if len(given) > MAX_LENGTH:
        return ""
    near = _same(given, known) or get_close_matches(given, known, n=1)
    return f"did you mean {before}{near[0]}? " if near else ""


SYNONYMS = {
    "gpu": "cuda",
    "fa": "factor_analysis",
    "bert": "masked_lm",
    "ml": "maximum_likelihood",
    "mle": "maximum_likelihood",
    "yes": "true",
    "on": "true",
    "no": "false",
    "off": "false",
}


def _same(given: str, known: Collection[str]) -> list[str]:
    """Return the known name that differs only in case, or that also has the given name."""
    lower = SYNONYMS.get(given.lower(), given.lower())
    return [one for one in known if one.lower() == lower]


MAX_PATHS = 3
ALIKE = 0.8
"""Likeness of the names that are suggested where a field of the given name is elsewhere."""


def meant_field(
    name: str, known: Collection[str], experiment: type[BaseModel], spec: object
) -> str:
    """Return a question with the fields that an unknown field of a spec may mean, or nothing:
    `known` ones of the same object, and those of its name in other parts of the spec."""
    if len(name) > MAX_LENGTH:
        return ""
    paths = _paths_by_name(experiment, spec)
    if name not in paths and (near := meant(name, known)):
        return near.strip()
    here = get_close_matches(name, known, n=1, cutoff=ALIKE)
    alike = get_close_matches(name, paths, n=1, cutoff=ALIKE)
    elsewhere = paths[alike[0]][:MAX_PATHS] if alike else []
    return f"did you mean {' or '.join([*here, *elsewhere])}?" if alike else ""


def _paths_by_name(experiment: type[BaseModel], spec: object) -> dict[str, list[str]]:
    """Return the paths of all fields by their last names. A field of a part that the spec does not
    have is left out where another part has one of the same name."""
    found = dict(_fields(experiment, spec))
    paths: dict[str, list[str]] = {}
    for is_given in (True, False):
        names = {*paths}
        for path in (path for path, given in found.items() if given == is_given):
            if (name := path.rpartition(".")[2]) not in names:
                paths.setdefault(name, []).append(path)
    return paths


def _fields(model: type[BaseModel], value: object, within: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the path of each field that a model allows beside the given fields, and whether the
    object that contains it is given."""
    for name, field in model.model_fields.items():
        yield f"{within}{name}", isinstance(value, dict)
        part = value.get(name) if isinstance(value, dict) else None
        for member in models_of(field.annotation):
            if _fits(member, part):
                yield from _fields(member, part, f"{within}{name}.")


def _fits(model: type[BaseModel], value: object) -> bool:
    """Return whether a value may become a model: its tag, such as the source of data, is the
    model's."""
    return not isinstance(value, dict) or all(
        value[name] in get_args(field.annotation)
        for name, field in model.model_fields.items()
        if name in value and get_origin(field.annotation) is Literal
    )
