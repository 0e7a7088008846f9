"""Read uploaded files of numbers. Nothing is ever unpickled."""

import json
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mptcore.protocol.records import RunError
from mptcore.runtime.inputs import InputError, input_file
from mptcore.specs import UploadData

FORMATS = ("npy", "npz", "csv", "tsv", "parquet")
SEPARATORS = {"csv": ",", "tsv": "\t"}
"""Separators of the cells in text files."""
MAX_REPORTED = 5
TYPE_ROWS = 100
"""Rows of a column that are searched for its first text."""
CELL_CURE = "every cell is a finite number, or empty or NaN where a value is missing"
EMPTY_CURE = "leave out rows and columns without any value"
LONGEST_LINE = 10_000_000

BEGINNINGS = {"npy": b"\x93NUMPY", "npz": b"PK", "parquet": b"PAR1"}
WRITERS = {"npy": "numpy.save", "npz": "numpy.savez", "parquet": "DataFrame.to_parquet"}
FIRST_LINE = "the first line has numbers and missing values: put the names of columns before it"
INDEX_NAMES = {"", "Unnamed: 0", "__index_level_0__"}
"""Names of columns that were the index of a pandas table."""
TOO_LONG = "a line is longer than 1 MiB: line breaks are missing, or the table is so wide: use .npy"

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
    """The numbers of an upload, and the names of its columns if it is a table."""

    x: np.ndarray[Any, np.dtype[np.float64]]  # (N, D)
    columns: tuple[str, ...] | None


class UnreadableError(ValueError):
    """A file has the wrong format or contains values that are not numbers. The message says
    which."""


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


def inspect(path: Path) -> Inspection:
    """Return the contents of a file, and its problems."""
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in FORMATS:
        return Inspection(
            problems=[f"a file is one of .npy, .npz, .csv, .tsv, .parquet, not .{suffix}"]
        )
    try:
        arrays, columns = _read(path, suffix)
        text = path if suffix in SEPARATORS else None
        problems = [
            p for name, array in arrays.items() for p in _cell_problems(name, array, columns, text)
        ]
        problems += [CELL_CURE] if problems else []
        for name, array in arrays.items():
            problems += _empty_problems(name, array, columns, text)
        if index := INDEX_NAMES.intersection(columns or ()):
            told = f"column {index.pop()!r} looks like the index of a pandas table"
            problems = [f"{told}: write the file with index=False, or name the column"]
    except UnreadableError as error:
        return Inspection(suffix, problems=[str(error)])
    n, dim = next(iter(arrays.values())).shape
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    shown = shapes if suffix == "npz" else None
    return Inspection(suffix, n, dim, shown, columns, problems, *_columns(arrays, columns))


def _columns(
    arrays: dict[str, np.ndarray[Any, Any]], columns: Sequence[str] | None
) -> tuple[dict[str, list[str]] | None, dict[str, dict[str, int]] | None]:
    """Return the constant columns, and the number of missing values by column, both by array; None
    if there are none."""
    constant, missing = {}, {}
    for name, array in arrays.items():
        names = columns or [*map(str, range(array.shape[1]))]
        counts = np.isnan(array).sum(0)
        least, largest = np.fmin.reduce(array, 0), np.fmax.reduce(array, 0)
        if places := np.flatnonzero(least == largest).tolist():
            constant[name] = [names[c] for c in places]
        if counts.any():
            missing[name] = {names[c]: int(counts[c]) for c in np.flatnonzero(counts).tolist()}
    return constant or None, missing or None


def uploaded(spec: UploadData) -> Upload:
    """Return the observations of an upload, from $MPT_STORE/datasets/<id>/. Raises RunError."""
    try:
        array, columns = _array(stored_file(spec.dataset, FORMATS), spec)
    except UnreadableError as error:
        raise RunError("invalid", f"the upload {spec.dataset} cannot be used: {error}") from error
    if array.shape != (spec.n, spec.dim):
        found = "{} observations of {} dimensions".format(*array.shape)
        detail = f"the upload {spec.dataset} has {found}; data.n and data.dim say "
        raise RunError("invalid", f"{detail}{spec.n} and {spec.dim}")
    names = None if columns is None else tuple(columns)
    return Upload(np.ascontiguousarray(array, dtype=np.float64), names)


def stored_file(dataset: str, formats: Sequence[str]) -> Path:
    """Return the file of an upload. Raises UnreadableError if it has none of these formats."""
    try:
        path = input_file(dataset, f"datasets/{dataset}/*")
    except InputError as error:
        raise UnreadableError(str(error)) from error
    if path.suffix.lstrip(".") not in formats:
        known = ", ".join(formats)
        raise UnreadableError(f"it is {path.suffix.lstrip('.')}, not one of {known}")
    return path


def _array(path: Path, spec: UploadData) -> tuple[np.ndarray[Any, Any], list[str] | None]:
    arrays, columns = _read(path, path.suffix.lstrip("."))
    if spec.array is not None and spec.array not in arrays:
        raise UnreadableError(f"it has no array {spec.array}; it has {', '.join(arrays)}")
    name = spec.array or next(iter(arrays))
    array = arrays[name]
    if spec.columns is not None:
        array = array[:, _places(spec.columns, columns)]
        columns = list(spec.columns)
    problems = _cell_problems(name, array, columns)
    problems += _empty_problems(name, array, columns)
    if problems:
        raise UnreadableError("; ".join(problems))
    return array, columns


def _places(wanted: Sequence[str], columns: list[str] | None) -> list[int]:
    missing = [name for name in wanted if name not in (columns or [])]
    if missing or columns is None:
        raise UnreadableError(f"it has no column {', '.join(missing)}")
    return [columns.index(name) for name in wanted]


def _read(path: Path, suffix: str) -> tuple[dict[str, np.ndarray[Any, Any]], list[str] | None]:
    """Return the arrays of a file by name, and the names of its columns. Raises UnreadableError."""
    try:
        _check_beginning(path, suffix)
        match suffix:
            case "npy":
                return {"": _matrix(np.load(path, allow_pickle=False))}, None
            case "npz":
                with np.load(path, allow_pickle=False) as archive:
                    arrays = {name: _matrix(archive[name]) for name in archive.files}
                if not arrays:
                    raise UnreadableError("the archive holds no array")
                return arrays, None
            case _:
                return _read_table(path, suffix)
    except UnreadableError:
        raise
    except UNREADABLE as error:
        detail = f"not a readable .{suffix} file of numbers: {told_of(path, error)}"
        raise UnreadableError(detail) from error


def told_of(path: Path, error: Exception) -> str:
    """Return an error's message about a file as one line, without its path."""
    return " ".join(str(error).replace(str(path), path.name).split())[:200]


def _check_beginning(path: Path, suffix: str) -> None:
    """Raises UnreadableError if the content of a file does not match its extension."""
    with path.open("rb") as file:
        begin = file.read(16)
    kind = next((kind for kind, first in BEGINNINGS.items() if begin.startswith(first)), "csv")
    if kind == suffix or (kind == "csv" and suffix in SEPARATORS):
        return
    found = f"begins as .{kind} does" if kind in BEGINNINGS else f"begins with {begin!r}"
    cure = f"; {WRITERS[suffix]} writes one" if suffix in WRITERS else ""
    raise UnreadableError(f"not a .{suffix} file: it {found if begin else 'is empty'}{cure}")


def _read_table(path: Path, suffix: str) -> tuple[dict[str, np.ndarray[Any, Any]], list[str]]:
    import pyarrow as arrow
    from pyarrow import csv, parquet

    try:
        if suffix in SEPARATORS:
            table = csv.read_csv(
                path,
                read_options=csv.ReadOptions(autogenerate_column_names=_headless(path)),
                parse_options=csv.ParseOptions(delimiter=SEPARATORS[suffix]),
            )
        else:
            _check_types(parquet.ParquetFile(path))
            table = parquet.read_table(path)
    except arrow.ArrowException as error:
        reason = TOO_LONG if "straddling" in str(error) else told_of(path, error)
        detail = f"not a readable .{suffix} file: {reason}{_semicolons(path)}"
        raise UnreadableError(detail) from error
    if suffix in SEPARATORS and not _headless(path) and _is_row(table.column_names):
        raise UnreadableError(FIRST_LINE)
    for place, column in zip(table.schema, table.columns, strict=True):
        if not _is_numeric(place):
            found = _first_text(column, path)
            told = f"column {place.name} is not numbers{found}{_semicolons(path)}"
            raise UnreadableError(told)
    values = [column.to_numpy(zero_copy_only=False) for column in map(_chunked, table.columns)]
    return {"": _matrix(np.column_stack(values))}, table.column_names


def _is_numeric(place: Any) -> bool:
    from pyarrow import types

    kinds = types.is_integer, types.is_floating, types.is_null  # null: nothing but empty cells
    return any(is_kind(place.type) for is_kind in kinds)


def _check_types(file: Any) -> None:
    """Raise UnreadableError for a Parquet file with a column that is not numbers. Only the first
    rows of that column are decoded."""
    for place in file.schema_arrow:
        if not _is_numeric(place):
            first = next(file.iter_batches(TYPE_ROWS, columns=[place.name]), None)
            found = "" if first is None else _first_text(first.column(0), None)
            raise UnreadableError(f"column {place.name} is not numbers{found}")


def _chunked(column: Any) -> Any:
    """Return the column as floating point, with NaN for missing values."""
    return column.cast("float64").combine_chunks()


def _semicolons(path: Path) -> str:
    """Return a hint for a .csv file with semicolons in its first line."""
    with path.open("rb") as file:
        has_some = path.suffix == ".csv" and b";" in file.readline(LONGEST_LINE)
    return "; cells are separated by commas, not by semicolons" if has_some else ""


def _first_text(column: Any, text: Path | None) -> str:
    """Return the position of the first cell that is not a number, and how many more there are. One
    such cell makes the whole column text."""
    from pyarrow import csv

    missing = csv.ConvertOptions().null_values
    cells = ((row, str(cell)) for row, cell in enumerate(column.to_pylist()))
    bad = ((row, cell) for row, cell in cells if cell not in missing and not _is_number(cell))
    row, cell = next(bad, (0, ""))
    if not cell:
        return ""
    more = 0 if text is None else sum(1 for _ in bad)
    rest = f", and {more} more" if more else ""
    return f": {_named([row], text)[0]} is {cell[:40]!r}{rest}"


def _named(rows: Sequence[int], text: Path | None) -> list[str]:
    """Return names for rows: line numbers from 1 in a text file, else indices from 0."""
    if text is None:
        return [f"row {row}" for row in rows]
    with text.open("rb") as file:
        full = (number for number, line in enumerate(file, 1) if line.strip())
        lines = list(islice(full, max(rows, default=0) + 2))
    header = 0 if _headless(text) else 1
    return [f"line {lines[row + header]}" for row in rows]


def _is_row(cells: Sequence[str]) -> bool:
    """Return whether the names of columns are numbers and markers of missing values."""
    from pyarrow import csv

    markers = {*csv.ConvertOptions().null_values} - INDEX_NAMES
    return all(cell in markers or _is_number(cell) for cell in cells)


def _is_number(cell: object) -> bool:
    try:
        float(str(cell))
    except ValueError:
        return False
    return True


def _headless(path: Path) -> bool:
    """Return whether the first line holds numbers instead of names."""
    with path.open("rb") as file:
        first = file.readline(LONGEST_LINE)
    try:
        return bool([float(cell) for cell in _cells(first, path)])
    except ValueError:
        return False


def _cells(line: bytes, path: Path) -> list[str]:
    return line.decode().rstrip("\r\n").split(SEPARATORS[path.suffix[1:].lower()])


def _matrix(array: Any) -> np.ndarray[Any, Any]:
    """Return the array if it is a non-empty table of numbers."""
    if array.dtype.kind not in "fiub":
        raise UnreadableError(f"an array holds real numbers, not {array.dtype}")
    if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] < 2:
        shape = " × ".join(map(str, array.shape)) or "a single number"
        raise UnreadableError(f"an array is N observations × D dimensions, D ≥ 2, not {shape}")
    kept: np.ndarray[Any, Any] = array
    return kept


def _cell_problems(
    name: str,
    array: np.ndarray[Any, Any],
    columns: Sequence[str] | None,
    text: Path | None = None,
) -> list[str]:
    """Return the problems of cells that are infinite, located by index in an array, by row and
    column name in a table, by line in a text file."""
    if array.dtype.kind != "f":
        return []
    bad = np.argwhere(np.isinf(array))
    first = bad[:MAX_REPORTED].tolist()
    if columns is None:
        told = [f"{name or 'array'}[{r}, {c}] is {array[r, c]}" for r, c in first]
    else:
        rows = _named([r for r, _ in first], text)
        told = [
            f"{row}, column {columns[c]} is {array[r, c]}"
            for row, (r, c) in zip(rows, first, strict=True)
        ]
    rest = len(bad) - len(told)
    return [*told, f"and {rest} cells more"] if rest > 0 else told


def _empty_problems(
    name: str,
    array: np.ndarray[Any, Any],
    columns: Sequence[str] | None,
    text: Path | None = None,
) -> list[str]:
    """Return the problems of rows and columns without any value."""
    missing = np.isnan(array)
    rows = np.flatnonzero(missing.all(1)).tolist()
    found = np.flatnonzero(missing.all(0)).tolist()
    within = f"{name}: " if name else ""
    told = [f"{within}{row} has no value" for row in _named(rows[:MAX_REPORTED], text)]
    told += [f"{within}column {(columns or range(array.shape[1]))[c]} has no value" for c in found]
    rest = len(rows) + len(found) - MAX_REPORTED
    told = [*told[:MAX_REPORTED], *([f"and {rest} more"] if rest > 0 else [])]
    return [*told, EMPTY_CURE] if told else []


def as_json(found: Inspection) -> str:
    return json.dumps({key: value for key, value in vars(found).items() if value is not None})
