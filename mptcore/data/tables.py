"""Read tables of numbers: .csv, .tsv and .parquet files."""

import json
from pathlib import Path
from typing import Any

from mptcore.data.files import UnreadableError, error_text
from mptcore.data.separated import read_separated
from mptcore.data.table_columns import (
    SAVED_INDEX,
    Columns,
    Table,
    add_nameless,
    add_numbers,
    are_ids,
    existing_columns,
    is_numeric,
    refuse_duplicates,
)
from mptcore.specs.vectors import TableOptions

TOO_LONG = "a line is longer than 1 MiB: line breaks are missing, or the table is so wide: use .npy"


def read_table(path: Path, options: TableOptions) -> Table:
    """Return the numbers of a table. Raises UnreadableError."""
    import pyarrow as arrow

    try:
        if path.suffix == ".parquet":
            return _read_parquet(path, options)
        return read_separated(path, options)
    except MemoryError:  # Arrow's is an ArrowException too
        raise
    except arrow.ArrowException as error:
        reason = TOO_LONG if "straddling" in str(error) else error_text(path, error)
        raise UnreadableError(f"not a readable {path.suffix} file: {reason}") from error


def _read_parquet(path: Path, options: TableOptions) -> Table:
    from pyarrow import parquet, types

    file = parquet.ParquetFile(path)
    schema = file.schema_arrow
    refuse_duplicates(schema.names)
    pandas_index = index_columns(schema)
    ids = [*dict.fromkeys([*existing_columns(options.index, schema.names), *pandas_index])]
    nameless = [name for name in schema.names if SAVED_INDEX.fullmatch(name) and name not in ids]
    columns = Columns()
    kept = []
    for place in schema:
        if place.name in ids:
            continue
        if is_numeric(place.type) or place.name in nameless:
            kept.append(place.name)
            continue
        is_text = types.is_string(place.type) or types.is_large_string(place.type)
        if is_text and are_ids(file.read(columns=[place.name]).column(0), options):
            ids.append(place.name)
            continue
        first = next(file.iter_batches(1, columns=[place.name]), None)
        cell = "" if first is None or not len(first) else str(first.column(0)[0])
        columns.not_numbers[place.name] = f"it has {place.type}, such as {cell[:40]!r}"
    if columns.not_numbers and not options.drop_non_numeric:
        columns.table(options)  # refuses, before more is read
    table = file.read(columns=[*kept, *ids])
    data = dict(zip(table.column_names, table.columns, strict=True))
    del table  # each column leaves the memory once it is converted
    for name in kept:
        cells = data[name] if name in nameless else data.pop(name)
        if is_numeric(cells.type):
            add_numbers(columns, name, cells)
    columns.ids |= {name: _as_ids(name, data[name]) for name in ids}
    for name in nameless:
        add_nameless(columns, name, _as_ids(name, data[name]), is_index=True)
    return columns.table(options)


def _as_ids(name: str, cells: Any) -> Any:
    """Return the cells of a Parquet file's column as text. Raises UnreadableError."""
    import pyarrow as arrow

    try:
        return cells.combine_chunks().cast("string").fill_null("")
    except MemoryError:
        raise
    except arrow.ArrowException as error:
        detail = f"column {name} cannot be an id: it has {cells.type}"
        raise UnreadableError(detail) from error


def index_columns(schema: Any) -> list[str]:
    """Return the columns of a Parquet file that were the index of a pandas table."""
    try:
        metadata = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    except (ValueError, RecursionError):
        return []
    names = metadata.get("index_columns") if isinstance(metadata, dict) else None
    if not isinstance(names, list):
        return []
    columns = {*schema.names}
    return [name for name in names if isinstance(name, str) and name in columns]
