"""Completions for a shell: what the service knows, in no more time than a person waits."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mptlab.client import Client
from mptlab.errors import Json
from mptlab.experiments import first

SUGGESTED = 50
HASTE_S = 2.0
"""Maximum seconds to wait for the service."""
MODELS = ("ppca", "factor_analysis")
"""Families that need no choices besides the latent dimensions."""


def suggested_by(ask: Callable[[Client], Sequence[Any]]) -> Sequence[Any]:
    """Return what a service answers to a shell that completes; nothing if none answers."""
    try:
        with Client(timeout_s=HASTE_S, on_outage=lambda _: None, for_s=0.0) as client:
            return ask(client)
    except Exception:  # a shell that completes shows no errors
        return ()


def ids_and_names(incomplete: str) -> list[tuple[str, str]]:
    """Return the newest experiments: their names, and ids as far as typed."""
    newest = suggested_by(lambda client: client.experiments.list(SUGGESTED))
    suggested = [(run.name, run.status) for run in newest if run.name]
    suggested += [(run.id, f"{run.name or ''} {run.status}".strip()) for run in newest]
    return _begun(suggested, incomplete)


def sweeps_and_names(incomplete: str) -> list[tuple[str, str]]:
    """Return the newest sweeps: their names, and ids as far as typed."""
    newest = suggested_by(lambda client: first(client.sweeps, SUGGESTED))
    suggested = [(sweep["name"], sweep["status"]) for sweep in newest if sweep["name"]]
    suggested += [(sweep["id"], sweep["name"] or sweep["status"]) for sweep in newest]
    return _begun(suggested, incomplete)


def runs_and_sweeps(incomplete: str) -> list[tuple[str, str]]:
    """Return the newest experiments and sweeps."""
    return [*ids_and_names(incomplete), *sweeps_and_names(incomplete)]


def preset_names(incomplete: str) -> list[tuple[str, str]]:
    """Return the presets."""
    presets = suggested_by(lambda client: client.presets())
    return _begun([(one["name"], one["title"]) for one in presets], incomplete)


def checkpoints(incomplete: str) -> list[tuple[str, str]]:
    """Return the checkpoints of the lab; after a comma the second of two."""
    *others, last = incomplete.split(",")
    before = "".join(f"{name}," for name in others)
    there = suggested_by(lambda client: client.checkpoints())
    return _begun([(f"{before}{name}", "checkpoint") for name in there], f"{before}{last}")


def models(incomplete: str) -> list[tuple[str, str]]:
    """Return what can score data without a spec: families, checkpoints, and experiments."""
    families = [(name, "is fitted to the data") for name in (*MODELS, ",".join(MODELS))]
    return [*_begun(families, incomplete), *checkpoints(incomplete), *ids_and_names(incomplete)]


def spec_fields(incomplete: str) -> list[tuple[str, str]]:
    """Return the paths of a spec's fields, each with the sign that its value follows."""

    def fields(client: Client) -> Sequence[tuple[str, str]]:
        schemas = client.openapi()["components"]["schemas"]
        return [*_fields(schemas["Submission"]["properties"]["spec"], schemas)]

    return _begun([(f"{path}=", about) for path, about in suggested_by(fields)], incomplete)


def _fields(
    schema: Json, schemas: Mapping[str, Json], path: str = "", about: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the paths of the values in a JSON Schema, and what they mean."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    members = schema.get("anyOf") or schema.get("oneOf") or ()
    for member in members:
        yield from _fields(member, schemas, path, about)
    properties = schema.get("properties", {})
    for name, field in properties.items():
        below = f"{path}.{name}" if path else name
        yield from _fields(field, schemas, below, field.get("description", ""))
    if path and not members and not properties and schema.get("type") != "null":
        yield path, about


def _begun(suggested: Iterable[tuple[str, str]], incomplete: str) -> list[tuple[str, str]]:
    """Return each suggestion once that begins as it is typed."""
    return [pair for pair in dict(suggested).items() if pair[0].startswith(incomplete)]
