"""Reading an uploaded file: numbers only, nothing is ever unpickled."""

import importlib
import json
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mptcore.protocol.records import RunError
from mptcore.runtime.inputs import InputError, input_file
from mptcore.specs import UploadData

FORMATS = ("npy", "npz", "csv", "parquet")
MOST_REPORTED = 5

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


class UnreadableError(ValueError):
    """A file that is not what its name says, or holds what is no number. Says why."""


@dataclass(frozen=True)
class Inspection:
    """What is in a file; `n` and `dim` are those of its first array."""

    format: str | None = None
    n: int | None = None
    dim: int | None = None
    arrays: dict[str, list[int]] | None = None
    columns: list[str] | None = None
    problems: list[str] = field(default_factory=list)


def inspect(path: Path) -> Inspection:
    """What a file holds, and what is wrong with it."""
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in FORMATS:
        return Inspection(problems=[f"a file is one of .npy, .npz, .csv, .parquet, not .{suffix}"])
    try:
        arrays, columns = _read(path, suffix)
        problems = [
            p for name, array in arrays.items() for p in _cell_problems(name, array, columns)
        ]
    except UnreadableError as error:
        return Inspection(suffix, problems=[str(error)])
    n, dim = next(iter(arrays.values())).shape
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    return Inspection(suffix, n, dim, shapes if suffix == "npz" else None, columns, problems)


def uploaded(spec: UploadData) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The observations (N, D) of an upload, from $MPT_STORE/datasets/<id>/. Raises RunError."""
    try:
        array = _array(stored_file(spec.dataset, FORMATS), spec)
    except UnreadableError as error:
        raise RunError("invalid", f"the upload {spec.dataset} cannot be used: {error}") from error
    if array.shape != (spec.n, spec.dim):
        found = "{} observations of {} dimensions".format(*array.shape)
        detail = f"the upload {spec.dataset} has {found}; data.n and data.dim say "
        raise RunError("invalid", f"{detail}{spec.n} and {spec.dim}")
    return np.ascontiguousarray(array, dtype=np.float64)


def stored_file(dataset: str, formats: Sequence[str]) -> Path:
    """The file of an upload. Raises UnreadableError where there is none of these formats."""
    try:
        path = input_file(dataset, f"datasets/{dataset}/*")
    except InputError as error:
        raise UnreadableError(str(error)) from error
    if path.suffix.lstrip(".") not in formats:
        known = ", ".join(formats)
        raise UnreadableError(f"it is {path.suffix.lstrip('.')}, none of {known}")
    return path


def _array(path: Path, spec: UploadData) -> np.ndarray[Any, Any]:
    arrays, columns = _read(path, path.suffix.lstrip("."))
    if spec.array is not None and spec.array not in arrays:
        raise UnreadableError(f"it has no array {spec.array}; it has {', '.join(arrays)}")
    name = spec.array or next(iter(arrays))
    array = arrays[name]
    if spec.columns is not None:
        array = array[:, _places(spec.columns, columns)]
        columns = list(spec.columns)
    problems = _cell_problems(name, array, columns)
    if problems:
        raise UnreadableError("; ".join(problems))
    return array


def _places(wanted: Sequence[str], columns: list[str] | None) -> list[int]:
    missing = [name for name in wanted if name not in (columns or [])]
    if missing or columns is None:
        raise UnreadableError(f"it has no column {', '.join(missing)}")
    return [columns.index(name) for name in wanted]


def _read(path: Path, suffix: str) -> tuple[dict[str, np.ndarray[Any, Any]], list[str] | None]:
    """The arrays of a file, by name, and its columns' names. Raises UnreadableError."""
    try:
        match suffix:
            case "npy":
                return {"": _matrix(_load_npy(path))}, None
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
        reason = " ".join(str(error).split())[:200]
        raise UnreadableError(f"not a readable .{suffix} file of numbers: {reason}") from error


def _load_npy(path: Path) -> Any:
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise UnreadableError("not a .npy file: it does not begin as one")
    return np.load(path, allow_pickle=False)


def _read_table(path: Path, suffix: str) -> tuple[dict[str, np.ndarray[Any, Any]], list[str]]:
    arrow: Any = importlib.import_module("pyarrow")
    csv: Any = importlib.import_module("pyarrow.csv")
    parquet: Any = importlib.import_module("pyarrow.parquet")

    try:
        if suffix == "csv":
            table = csv.read_csv(
                path,
                read_options=csv.ReadOptions(autogenerate_column_names=_headless(path)),
            )
        else:
            table = parquet.read_table(path)
    except arrow.ArrowException as error:
        reason = " ".join(str(error).split())[:200]
        raise UnreadableError(f"not a readable .{suffix} file: {reason}") from error
    for place, column in zip(table.schema, table.columns, strict=True):
        if not (arrow.types.is_integer(place.type) or arrow.types.is_floating(place.type)):
            detail = f"column {place.name} is not numbers{_first_text(column)}"
            if ";" in place.name:
                detail = f"{detail}; cells are separated by commas, not by semicolons"
            raise UnreadableError(detail)
    values = [column.to_numpy(zero_copy_only=False) for column in map(_chunked, table.columns)]
    return {"": _matrix(np.column_stack(values))}, table.column_names


def _chunked(column: Any) -> Any:
    """The column as floating point, in which a missing value is NaN."""
    return column.cast("float64").combine_chunks()


def _first_text(column: Any) -> str:
    """Where the first cell is that is no number: one is enough to make a column text."""
    for row, cell in enumerate(column):
        if not _is_number(cell.as_py()):
            return f": row {row} is {str(cell.as_py())[:40]!r}"
    return ""


def _is_number(cell: object) -> bool:
    try:
        float(str(cell))
    except ValueError:
        return False
    return True


def _headless(path: Path) -> bool:
    """Whether the first line is numbers, not names."""
    with path.open("rb") as file:
        first = file.readline(10_000_000)
    try:
        return bool([float(cell) for cell in first.decode().strip().split(",")])
    except ValueError:
        return False


def _matrix(array: Any) -> np.ndarray[Any, Any]:
    """The array, if it is a table of numbers with something in it."""
    if array.dtype.kind not in "fiub":
        raise UnreadableError(f"an array holds real numbers, not {array.dtype}")
    if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] < 2:
        shape = " × ".join(map(str, array.shape)) or "a single number"
        raise UnreadableError(f"an array is N observations × D dimensions, D ≥ 2, not {shape}")
    kept: np.ndarray[Any, Any] = array
    return kept


def _cell_problems(
    name: str, array: np.ndarray[Any, Any], columns: Sequence[str] | None
) -> list[str]:
    """The cells that are NaN or infinite, by row, from 0, and column, from 0 or by its name."""
    if array.dtype.kind != "f":
        return []
    bad = np.argwhere(~np.isfinite(array))
    where = f" of {name}" if name else ""
    told = [
        f"row {r}, column {columns[c]} is empty or {array[r, c]}"
        if columns
        else f"row {r}, column {c}{where} is {array[r, c]}"
        for r, c in bad[:MOST_REPORTED]
    ]
    rest = len(bad) - len(told)
    return [*told, f"and {rest} cells more"] if rest > 0 else told


def as_json(found: Inspection) -> str:
    return json.dumps({key: value for key, value in vars(found).items() if value is not None})
