"""Describe and load uploaded files of numbers. Nothing is ever unpickled."""

import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mptcore.data.duplicates import repeated_rows
from mptcore.data.files import (
    FORMATS,
    Floats,
    UnreadableError,
    check_beginning,
    error_text,
    stored_file,
)
from mptcore.data.table_columns import EXACT, ROUNDED, Table
from mptcore.data.tables import read_table
from mptcore.protocol.records import RunError
from mptcore.runtime.inputs import InputError, MissingInput, input_file
from mptcore.specs import UploadData
from mptcore.specs.vectors import DEFAULT_TABLE_OPTIONS, OPTIONS_FILE, TableOptions

MAX_REPORTED = 5
MAX_NAMED = 10
MIN_ROWS = 5
"""Minimum number of rows of a column that is described as a counter, or as nearly constant."""
CELL_ADVICE = "every cell is a finite number, or empty or NaN where a value is missing"
EMPTY_ADVICE = "leave out rows and columns without any value (columns: --drop-non-numeric)"
TOO_LARGE = "numbers are at most 1.8e308, the largest of float64"
OLDER = ". If it is from an earlier version, which read headers differently: upload it again"

UNREADABLE = (
    ValueError,
    OSError,
    EOFError,
    KeyError,
    RuntimeError,  # an encrypted archive
    NotImplementedError,  # a compression that zipfile does not know
    zipfile.BadZipFile,
    zlib.error,
)


class Upload(NamedTuple):
    """The numbers of an upload, and if it is a table the names of its columns and ids of its
    rows."""

    x: Floats  # (N, D)
    columns: tuple[str, ...] | None
    ids: Mapping[str, Sequence[str]] | None = None
    """Columns that identify the rows, N values each."""


@dataclass(frozen=True)
class Inspection:
    """Contents of a file. `n` and `dim` are those of its first array."""

    format: str | None = None
    n: int | None = None
    dim: int | None = None
    arrays: dict[str, list[int]] | None = None
    columns: list[str] | None = None
    problems: list[str] = field(default_factory=list)
    constant: dict[str, list[str]] | None = None
    """Columns with one value only, by array, "" for the only one: their names, or their indices
    where they have none. Missing values do not count."""
    missing: dict[str, dict[str, int]] | None = None
    """Number of missing values of the columns that have some, by array."""
    reading: dict[str, Any] | None = None
    """Facts on how the file is read, if there are any: `header` (of a text file: whether the first
    line has names), `ids`, `left_out` (columns or arrays, with the reason), `warnings`, and
    the `options` that read a table without a decision about its header."""


@dataclass(frozen=True)
class _Content:
    """The arrays of a file. A table is one array of the name ""."""

    arrays: dict[str, Floats]
    left_out: dict[str, str]
    notes: list[str]
    table: Table | None = None


def inspect(path: Path, options: TableOptions = DEFAULT_TABLE_OPTIONS) -> Inspection:
    """Return the contents of a file, and its problems."""
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in FORMATS:
        return Inspection(
            problems=[f"a file is one of .npy, .npz, .csv, .tsv, .parquet, not .{suffix}"]
        )
    try:
        content = _read(path, suffix, options)
    except UnreadableError as error:
        return Inspection(suffix, problems=[str(error)])
    table = content.table
    columns = None if table is None else table.columns
    row_name = _row if table is None else table.row_name
    problems = {name: _problems(name, x, columns, row_name) for name, x in content.arrays.items()}
    usable = {name: x for name, x in content.arrays.items() if not problems[name]}
    if not usable:  # of several arrays some may be used
        return Inspection(suffix, problems=[line for lines in problems.values() for line in lines])
    left_out = content.left_out | {
        name: "; ".join(lines) for name, lines in problems.items() if lines
    }
    warnings = [*content.notes]
    for name, x in usable.items():
        warnings += _warnings(name, x, columns, row_name)
    reading: dict[str, Any] = {"left_out": left_out, "warnings": warnings}
    if table is not None:
        decided = options.model_copy(update={"header": table.header})
        reading |= {
            "header": table.header,
            "ids": [*table.ids],
            "options": decided.model_dump(mode="json", exclude_defaults=True),
        }
    reading = {name: value for name, value in reading.items() if value not in (None, [], {})}
    n, dim = next(iter(usable.values())).shape
    shapes = {name: list(x.shape) for name, x in usable.items()} if suffix == "npz" else None
    counts = _constant_and_missing(usable, columns)
    return Inspection(suffix, n, dim, shapes, columns, [], *counts, reading or None)


def uploaded(spec: UploadData) -> Upload:
    """Return the observations of an upload, from $MPT_STORE/datasets/<id>/. Raises RunError."""
    try:
        path = stored_file(spec.dataset, FORMATS)
        content = _read(path, path.suffix[1:], _stored_options(spec.dataset))
        upload = _chosen(content, spec)
    except UnreadableError as error:
        raise RunError("invalid", f"the upload {spec.dataset} cannot be used: {error}") from error
    if upload.x.shape != (spec.n, spec.dim):
        shape = "{} observations of {} dimensions".format(*upload.x.shape)
        detail = f"the upload {spec.dataset} has {shape}; data.n and data.dim say "
        raise RunError("invalid", f"{detail}{spec.n} and {spec.dim}{OLDER}")
    return upload


def _chosen(content: _Content, spec: UploadData) -> Upload:
    """Return the array, or the columns, that a spec uses. Raises UnreadableError."""
    if spec.array is not None and spec.array not in content.arrays:
        why = content.left_out.get(spec.array)
        if why is not None:
            raise UnreadableError(f"its array {spec.array} cannot be used: {why}")
        raise UnreadableError(f"it has no array {spec.array}; it has {', '.join(content.arrays)}")
    name = spec.array or next(iter(content.arrays))
    x, table = content.arrays[name], content.table
    columns = None if table is None else table.columns
    if spec.columns is not None:
        missing = [column for column in spec.columns if column not in (columns or [])]
        if missing or columns is None:
            raise UnreadableError(f"it has no column {', '.join(missing)}")
        x = x[:, [columns.index(column) for column in spec.columns]]
        columns = [*spec.columns]
    if problems := _problems(name, x, columns, _row):
        raise UnreadableError("; ".join(problems))
    ids = {key: cells.to_pylist() for key, cells in table.ids.items()} if table else None
    names = None if columns is None else tuple(columns)
    return Upload(np.ascontiguousarray(x, dtype=np.float64), names, ids or None)


def _stored_options(dataset: str) -> TableOptions:
    """Return the options that a stored table is read with. Uploads of version 0.2 have none. Raises
    UnreadableError if their file is damaged."""
    name = f"{dataset}/{OPTIONS_FILE}"
    try:
        file = input_file(name, f"datasets/{name}")
    except MissingInput:
        return DEFAULT_TABLE_OPTIONS
    except InputError as error:
        raise UnreadableError(f"{OPTIONS_FILE}: {error}") from error
    return TableOptions.model_validate_json(file.read_bytes())


def _read(path: Path, suffix: str, options: TableOptions) -> _Content:
    """Return the arrays of a file. Raises UnreadableError."""
    try:
        check_beginning(path, suffix)
        if suffix == "npy":
            notes: list[str] = []
            with path.open("rb") as file:
                array = np.load(file, allow_pickle=False)
                if file.read(1):
                    raise UnreadableError("it goes on after its first array: use .npz for several")
            return _Content({"": _matrix("", array, notes)}, {}, notes)
        if suffix == "npz":
            return _archive(path)
        table = read_table(path, options)
        x = _matrix("", table.x, [])
        return _Content({"": x}, table.left_out, table.notes, table)
    except UnreadableError:
        raise
    except UNREADABLE as error:
        detail = f"not a readable .{suffix} file of numbers: {error_text(path, error)}"
        raise UnreadableError(detail) from error


def _archive(path: Path) -> _Content:
    """Return the matrices of an archive. Other arrays are left out: labels, one for each row."""
    content = _Content({}, {}, [])
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            try:
                content.arrays[name] = _matrix(name, archive[name], content.notes)
            except (UnreadableError, ValueError) as error:
                content.left_out[name] = error_text(path, error)
    if not content.arrays:
        reasons = "; ".join(f"{name}: {why}" for name, why in content.left_out.items())
        raise UnreadableError(f"the archive has no array that can be used: {reasons or 'none'}")
    return content


def _matrix(name: str, array: Any, notes: list[str]) -> Floats:
    """Return a non-empty table of numbers in float64. Whole numbers that are rounded are noted.
    Raises UnreadableError."""
    if array.dtype.kind not in "fiub":
        raise UnreadableError(f"an array holds real numbers, not {array.dtype}")
    if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] < 2:
        shape = " × ".join(map(str, array.shape)) or "a single number"
        raise UnreadableError(f"an array is N observations × D dimensions, D ≥ 2, not {shape}")
    if array.dtype.kind == "b":
        within = f"array {name}: " if name else ""
        notes.append(f"{within}true and false are read as 1 and 0")
    with np.errstate(over="ignore"):
        x: Floats = array.astype(np.float64, copy=False)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        for r, c in np.argwhere(np.abs(x) >= EXACT)[:100_000].tolist():
            if int(x[r, c]) != int(array[r, c]):
                notes.append(f"{ROUNDED}, such as {name or 'array'}[{r}, {c}], {array[r, c]}")
                break
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        for r, c in np.argwhere(np.isinf(x) & np.isfinite(array))[:1].tolist():
            where = f"{name or 'array'}[{r}, {c}] is {array[r, c]!s}"
            raise UnreadableError(f"{where}: {TOO_LARGE}")
    return x


def _row(row: int) -> str:
    return f"row {row}"


def _problems(
    name: str, x: Floats, columns: Sequence[str] | None, row_name: Callable[[int], str]
) -> list[str]:
    """Return the problems of cells that are infinite, and of rows and columns without any value."""
    bad = np.argwhere(np.isinf(x))
    first = bad[:MAX_REPORTED].tolist()
    if columns is None:
        problems = [f"{name or 'array'}[{r}, {c}] is {x[r, c]}" for r, c in first]
    else:
        problems = [f"{row_name(r)}, column {columns[c]} is {x[r, c]}" for r, c in first]
    if (more := len(bad) - len(problems)) > 0:
        problems.append(f"and {more} cells more")
    if problems:
        problems.append(CELL_ADVICE)
    missing = np.isnan(x)
    rows, empty = np.flatnonzero(missing.all(1)).tolist(), np.flatnonzero(missing.all(0)).tolist()
    within = f"{name}: " if name else ""
    lines = [f"{within}{row_name(row)} has no value" for row in rows[:MAX_REPORTED]]
    lines += [f"{within}column {columns[c] if columns else c} has no value" for c in empty]
    more = len(rows) + len(empty) - MAX_REPORTED
    lines = [*lines[:MAX_REPORTED], *([f"and {more} more"] if more > 0 else [])]
    return [*problems, *lines, *([EMPTY_ADVICE] if lines else [])]


def _constant_and_missing(
    arrays: dict[str, Floats], columns: Sequence[str] | None
) -> tuple[dict[str, list[str]] | None, dict[str, dict[str, int]] | None]:
    """Return the constant columns, and the number of missing values by column, both by array; None
    if there are none."""
    constant, missing = {}, {}
    for name, x in arrays.items():
        names = columns or [*map(str, range(x.shape[1]))]
        counts = np.isnan(x).sum(0)
        least, largest = np.fmin.reduce(x, 0), np.fmax.reduce(x, 0)
        if indices := np.flatnonzero(least == largest).tolist():
            constant[name] = [names[c] for c in indices]
        if counts.any():
            missing[name] = {names[c]: int(counts[c]) for c in np.flatnonzero(counts).tolist()}
    return constant or None, missing or None


def _warnings(
    name: str, x: Floats, columns: Sequence[str] | None, row_name: Callable[[int], str]
) -> list[str]:
    """Return sentences about rows and columns that are probably mistakes."""
    within = f"array {name}: " if name else ""
    names = columns or [*map(str, range(x.shape[1]))]
    warnings = []
    repeated = repeated_rows(x)
    if len(repeated):
        are = "row is an exact copy" if len(repeated) == 1 else "rows are exact copies"
        first = row_name(int(repeated[0]))
        warnings.append(f"{within}{len(repeated)} {are} of earlier ones, first {first}")
    if len(x) < MIN_ROWS:
        return warnings
    counters = x[1] - x[0] == 1
    counters[counters] = (np.diff(x[:, counters], axis=0) == 1).all(0)
    if counters.any():
        listed = _listed(names, counters)
        warnings.append(f"{within}{listed} count 1, 2, 3, …: an id is no measurement: --index NAME")
    observed = ~np.isnan(x)
    least, largest = np.fmin.reduce(x, 0), np.fmax.reduce(x, 0)
    once = np.minimum((x == least).sum(0), (x == largest).sum(0)) == 1
    two_values = ((x == least) | (x == largest) | ~observed).all(0) & (least < largest)
    if (odd := once & two_values & (observed.sum(0) >= MIN_ROWS)).any():
        warnings.append(f"{within}{_listed(names, odd)} have the same value in all rows but one")
    return warnings


def _listed(names: Sequence[str], chosen: Any) -> str:
    indices = np.flatnonzero(chosen).tolist()
    shown = ", ".join(names[c] for c in indices[:MAX_NAMED])
    return f"column(s) {shown}{', …' if len(indices) > MAX_NAMED else ''}"


def as_json(inspection: Inspection) -> str:
    """Return an inspection without its unknown fields."""
    return json.dumps({key: value for key, value in vars(inspection).items() if value is not None})
