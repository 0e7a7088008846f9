"""Data sets in files on this machine: the part of a file that is uploaded, and specs that use
it."""

import csv
import io
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx

from mptlab.errors import Json

SEPARATORS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*SEPARATORS, ".npy", ".npz", ".parquet", ".txt", ".jsonl")
"""Suffixes of files that the service reads."""
TEXT_SUFFIXES = (".txt", ".jsonl")
HELDOUT = 0.2
MAX_NAMED = 5
"""Maximum number of columns with missing values that are named."""
MISSING_USE = (
    "have no value: PPCA and factor analysis integrate them out; VAEs, and train of any family, "
    "refuse them"
)
UPLOAD_S = 600.0
"""Seconds to wait for the service to inspect an upload."""


def send_file(
    http: httpx.Client, file: Path, columns: Sequence[str] | None, index: str | None
) -> httpx.Response:
    """Send a file to the service, or some of its columns, and return the answer."""
    patience = httpx.Timeout(http.timeout.connect, read=UPLOAD_S)
    with content(file, columns, index) as sent:
        query = {"name": file.name}
        return http.post("/v1/datasets", params=query, content=sent, timeout=patience)


@contextmanager
def content(file: Path, columns: Sequence[str] | None, index: str | None) -> Iterator[IO[bytes]]:
    """Yield the content to upload: the whole file or, for a .csv or .tsv file, these columns or all
    columns except the index. Raises ValueError."""
    if columns is None and index is None:
        with file.open("rb") as whole:
            yield whole
        return
    if file.suffix not in SEPARATORS:
        raise ValueError(f"{file} has no columns to choose from: it is not a .csv or .tsv file")
    separator = SEPARATORS[file.suffix]
    with tempfile.TemporaryFile() as part, file.open(newline="", encoding="utf-8-sig") as source:
        text = io.TextIOWrapper(part, "utf-8", newline="")
        rows = csv.reader(source, delimiter=separator)
        writer = csv.writer(text, delimiter=separator, lineterminator="\n")
        writer.writerows(_columns(rows, file, columns, index))
        text.detach()
        part.seek(0)
        yield part


def _columns(
    rows: Any, file: Path, columns: Sequence[str] | None, index: str | None
) -> Iterator[list[str]]:
    """Yield the cells of these columns, row by row, their names first."""
    names: list[str] = next(rows, [])
    kept = [name for name in columns or names if name != index]
    if unknown := [one for one in (*kept, index) if one is not None and one not in names]:
        told = f"{file} has no column {unknown[0]}; it has {', '.join(names)}"
        is_other = len(names) == 1 and ";" in names[0]
        raise ValueError(f"{told}: write commas in place of semicolons" if is_other else told)
    places = [names.index(name) for name in kept]
    yield kept
    for row in rows:
        if row and len(row) != len(names):
            told = f"{len(row)} cells, but the first line has {len(names)}"
            raise ValueError(f"{file}, line {rows.line_num} has {told}")
        if row:
            yield [row[place] for place in places]


def missing_lines(
    upload: Json, columns: Sequence[str] | None = None, array: str | None = None
) -> Iterator[str]:
    """Yield a sentence for each array of an upload that has missing values: their number, and what
    models do with them. Only the given columns and array count."""
    for name, counts in (upload.get("missing") or {}).items():
        rows, dim = (upload["arrays"] or {}).get(name, (upload["n"], upload["dim"]))
        found = {one: count for one, count in counts.items() if one in (columns or counts)}
        if found and name == (array or name):
            cells = rows * (dim if columns is None else len(columns))
            within = f"array {name}: " if name else ""
            yield f"{within}{_counted(found, cells, rows)} {MISSING_USE}"


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
    if not (isinstance(name, str) and name.endswith(SUFFIXES) and Path(name).is_file()):
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
