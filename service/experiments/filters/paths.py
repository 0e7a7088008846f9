"""Dotted paths of all spec fields, and the families of models."""

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from mptcore.specs import ExperimentSpec

_DEEPEST = 12
"""Maximum number of references and unions on the way to a field."""


def _paths(schema: dict[str, Any], node: dict[str, Any], path: str, left: int) -> Iterator[str]:
    if left == 0:
        return
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for union in ("anyOf", "oneOf", "allOf"):
        for part in node.get(union, ()):
            yield from _paths(schema, part, path, left - 1)
    for name, part in node.get("properties", {}).items():
        inner = f"{path}.{name}" if path else name
        yield inner
        yield from _paths(schema, part, inner, left - 1)


def _families(schema: dict[str, Any]) -> Iterator[str]:
    for part in schema["$defs"].values():
        family = part.get("properties", {}).get("family", {}).get("const")
        if family is not None:
            yield family


_SCHEMA = TypeAdapter(ExperimentSpec).json_schema()
SPEC_PATHS = frozenset(_paths(_SCHEMA, _SCHEMA, "", _DEEPEST))
FAMILIES = tuple(sorted(set(_families(_SCHEMA))))
