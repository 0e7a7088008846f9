"""Data sets in files on this machine: how they are uploaded, and specs that use them."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import httpx

from mptlab.errors import Json
from mptlab.specs import UPLOADED

HELDOUT = 0.2
MAX_NAMED = 5
"""Maximum number of columns with missing values that are named."""
MISSING_USE = (
    "have no value: PPCA and factor analysis integrate them out; VAEs, and train of any family, "
    "refuse them"
)
UPLOAD_S = 600.0
"""Seconds to wait for the service to inspect an upload."""


def send_file(http: httpx.Client, file: Path, options: Mapping[str, Any]) -> httpx.Response:
    """Send a file to the service with the options to read it, and return the answer."""
    patience = httpx.Timeout(http.timeout.connect, read=UPLOAD_S)
    query = {"name": file.name, **options}
    with file.open("rb") as content:
        return http.post("/v1/datasets", params=query, content=content, timeout=patience)


def reading_lines(file: str, upload: Json) -> Iterator[str]:
    """Yield what the service has read of a file, and its warnings."""
    before = "" if upload["name"] == file else f" (uploaded before as {upload['name']})"
    yield f"{file}: {upload['summary']}{before}"
    for column, reason in islice(upload["left_out"].items(), MAX_NAMED):
        yield f"{column} is left out: {reason}"
    yield from upload["warnings"]


def print_reading(file: str, upload: Json) -> None:
    """Print what the service has read of a file on standard error."""
    sys.stderr.write("".join(f"{line}\n" for line in reading_lines(file, upload)))


def missing_lines(
    upload: Json, columns: Sequence[str] | None = None, array: str | None = None
) -> Iterator[str]:
    """Yield a sentence for each array of an upload that has missing values: their number, and what
    models do with them. Only the given columns and array count."""
    for name, counts in (upload.get("missing") or {}).items():
        rows, dim = (upload["arrays"] or {}).get(name, (upload["n"], upload["dim"]))
        chosen = columns or counts
        missing = {column: count for column, count in counts.items() if column in chosen}
        if missing and name == (array or name):
            cells = rows * (dim if columns is None else len(columns))
            within = f"array {name}: " if name else ""
            yield f"{within}{_counted(missing, cells, rows)} {MISSING_USE}"


def _counted(missing: Mapping[str, int], cells: int, rows: int) -> str:
    first = sorted(missing, key=lambda name: -missing[name])[:MAX_NAMED]
    more = f", and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
    by_column = ", ".join(f"{name} {missing[name]}" for name in first)
    total = f"{sum(missing.values())} of {cells} cells in {rows} rows"
    return f"{total} (by column: {by_column}{more})"


def with_uploads(spec: Any, upload: Callable[[str], Json]) -> Any:
    """Return a spec whose `data.dataset` is the id of an upload where it was a file on this
    machine."""
    data = spec.get("data") if isinstance(spec, Mapping) else None
    if not isinstance(data, Mapping):
        return spec
    name = data.get("dataset")
    if not (isinstance(name, str) and name.lower().endswith(UPLOADED) and Path(name).is_file()):
        return spec
    return {**spec, "data": {**data, "dataset": upload(name)["id"]}}


def text_spec(data: Json, checkpoint: str) -> Json:
    """Return the spec that scores texts with a masked language model."""
    return {"model": {"family": "masked_lm", "checkpoint": checkpoint}, "data": data}


def spec_of_fitted(data: Json, fitted: Json) -> Json:
    """Return the spec that scores data with the model that an experiment has fitted, as that
    experiment did."""
    spec = fitted["spec"]
    model = {name: value for name, value in spec["model"].items() if name != "noise_precision"}
    scaled = {name: spec["data"].get(name) for name in ("binarize", "standardize")}
    return {
        "model": {**model, "init": "experiment", "experiment": fitted["id"]},
        "data": {**{name: value for name, value in scaled.items() if value}, **data},
        "evaluate": spec["evaluate"],
    }


def spec_for(data: Json, family: str, latent_dim: int) -> Json:
    """Return the spec that fits a model to some data and scores it. A part is held out, so that
    models with more latent dimensions can lose."""
    return {
        "model": {"family": family, "latent_dim": latent_dim, "init": "maximum_likelihood"},
        "data": {"heldout": HELDOUT, **data},
        "evaluate": {"masks": {"schedule": "all", "per_size": 100}},
    }
