"""Specs as users write them (mappings, pydantic models, files), and values converted to JSON."""

import copy
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import yaml

from mptlab.errors import Json

SUFFIXES = (".json", ".yaml", ".yml")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
ARRAY_SUFFIXES = (".npy", ".npz")
TEXT_SUFFIXES = (".txt", ".jsonl")
UPLOADED = (*TABLE_SUFFIXES, *ARRAY_SUFFIXES, *TEXT_SUFFIXES)
"""Suffixes of files that the service reads."""
DATA_SUFFIXES = {
    "table": (*TABLE_SUFFIXES, ".csv.gz", ".tsv.gz"),
    "array": ARRAY_SUFFIXES,
    "texts": TEXT_SUFFIXES,
    "spreadsheet": (".xls", ".xlsx", ".ods"),
}
"""Suffixes of files with data, which users have given in place of a spec."""


def not_none(**options: Any) -> Json:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def plain(value: Any) -> Any:
    """Convert values that `json` does not know: numpy's numbers and arrays, pydantic models, paths,
    ranges and other iterables."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "tolist"):  # numpy's and torch's, which are not imported here
        return value.tolist()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(
        f"{value!r} is not valid JSON: give text, numbers, true, false, null, lists, mappings"
    )


def to_json(value: Any) -> bytes:
    """Return the body of a request. Raises ValueError for NaN and infinity, which JSON does not
    have, with the place of the first."""
    text = json.dumps(value, default=plain)
    if "NaN" in text or "Infinity" in text:
        for path, number in _non_finite(json.loads(text)):
            raise ValueError(f"{path}: a finite number, not {json.dumps(number)}")
    return text.encode()


def _non_finite(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in a JSON value that are NaN or infinite, with their JSON pointers."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path, value
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    for key, part in parts:
        step = str(key).replace("~", "~0").replace("/", "~1")
        yield from _non_finite(part, f"{path}/{step}")


def is_spec_file(given: object) -> bool:
    """Return whether a value names a file, and is neither a spec nor a preset."""
    if isinstance(given, os.PathLike):
        return True
    return isinstance(given, str) and (given.endswith(SUFFIXES) or "/" in given)


def kind_of_data(value: object) -> str | None:
    """Return the kind of data if a value is an array or a data frame, or names a file of them by
    its suffix, and so is no spec."""
    if hasattr(value, "shape"):  # numpy's, pandas' and torch's, which are not imported here
        return "array"
    if isinstance(value, str | os.PathLike):
        name = os.fspath(value).lower()
        return next((kind for kind, ends in DATA_SUFFIXES.items() if name.endswith(ends)), None)
    return None


def read_spec(file: str | os.PathLike[str]) -> Json:
    """Return the spec in a JSON or YAML file."""
    return parse_spec(Path(file).read_text(encoding="utf-8"), str(file))


def parse_spec(text: str, name: str) -> Json:
    """Return the spec in the text of a file with this name: YAML if the suffix says so, else JSON.
    A byte order mark is left out. Raises ValueError with the position of the error."""
    text = text.removeprefix("\ufeff")
    try:
        # _Loader is a SafeLoader
        value = yaml.load(text, _Loader) if name.endswith(SUFFIXES[1:]) else json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{name} is not valid JSON: {error.msg} at {place}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{name} contains no spec: a spec is an object with model, data etc.")
    return value


def parse_value(text: str) -> Any:
    """Return a typed value: parsed if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def names_of_parts(name: str, count: int) -> list[str]:
    """Return the names of the experiments of a preset or another group."""
    return [name] if count == 1 else [f"{name} {part}/{count}" for part in range(1, count + 1)]


def changed(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> Json:
    """Return the spec with other values at some dotted paths. Raises ValueError for an invalid
    path."""
    copied = copy.deepcopy(dict(spec))
    for path, value in changes.items():
        *parents, last = path.split(".")
        part: Any = copied
        for parent in parents:
            part = part.setdefault(parent, {}) if isinstance(part, dict) else None
        if not isinstance(part, dict):
            raise ValueError(
                f"{path} is not a valid path: the part before .{last} is not an object"
            )
        part[last] = value
    return copied


QUICK_MASKS = 12
"""Masks of each size in a quick look: the fewest that give a standard error."""


def quick(spec: Mapping[str, Any]) -> Json:
    """Return the spec of a quick look: few masks of each size, and the first seed only."""
    is_text = spec.get("model", {}).get("family") == "masked_lm"
    evaluate = dict(spec.get("evaluate") or {})
    masks = {"schedule": "rates" if is_text else "all", **evaluate.get("masks", {})}
    if masks.get("design") != "exhaustive":
        masks["per_size"] = 1 if is_text else min(masks.get("per_size", 100), QUICK_MASKS)
    for name in ("target_std_err", "target", "max_masks"):
        evaluate.pop(name, None)
    short = {**spec, "evaluate": {**evaluate, "masks": masks}}
    return short | ({"seeds": spec["seeds"][:1]} if isinstance(spec.get("seeds"), list) else {})


class _Loader(yaml.SafeLoader):
    """Read 1e-3 as a number: YAML 1.1 requires a decimal point in it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)
