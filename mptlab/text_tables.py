"""Texts of a file or a DataFrame, with the other columns of their rows."""

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from mptlab.curves import needed
from mptlab.errors import Json
from mptlab.text_files import FASTA_SUFFIXES, read_fasta, read_lines, read_numbered_lines

SEPARATORS = {".csv": ",", ".tsv": "\t"}
OTHER_SEPARATORS = ",;\t|"
TABLE_SUFFIXES = (*SEPARATORS, ".jsonl", ".parquet")
SUFFIXES = (".txt", *TABLE_SUFFIXES, *FASTA_SUFFIXES)
"""Suffixes of files of texts. A file without a suffix has a text in each line."""
MISSING_CELLS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""Cells that do not make a column of numbers one of text."""

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class TextTable:
    """Texts, empty where a row has none, and the other columns of their rows."""

    texts: Sequence[str]
    column: str | None = None
    """Name of the texts' column; None if they are no table."""
    columns: Columns = field(default_factory=dict)
    """Values of the other columns, by name."""
    notes: Sequence[str] = ()
    """Sentences on what was read, and on what was changed in it."""
    index: Any = None
    """Index of the DataFrame or Series that had the texts."""


def texts_of(source: Any, column: str | None = None) -> TextTable:
    """Return the texts of one text, a list, a DataFrame, a Series, or the path of a file. Raises
    ValueError, ImportError."""
    if isinstance(source, TextTable):
        return source
    if isinstance(source, os.PathLike):
        return read_texts(Path(source), column)
    if hasattr(source, "columns") and hasattr(source, "__getitem__"):
        return _of_frame(source, column)
    if column is not None:
        raise ValueError(f"column {column}: only a table has columns, such as a DataFrame")
    if isinstance(source, str):
        if is_file(source) and source.lower().endswith(SUFFIXES):
            raise ValueError(f"{source} is a file: for its texts give pathlib.Path({source!r})")
        return TextTable([source])
    if isinstance(source, bytes | Mapping) or not isinstance(source, Iterable):
        raise ValueError("give a text, a list of texts, a DataFrame, or the path of a file")
    texts = [_text(value, f"text {row}") for row, value in enumerate(source)]
    return TextTable(texts, index=getattr(source, "index", None) if _is_pandas(source) else None)


def read_texts(file: Path, column: str | None = None, separator: str | None = None) -> TextTable:
    """Read the texts of a file by its suffix. Raises ValueError, ImportError."""
    suffix = file.suffix.lower()
    if separator is not None and suffix not in SEPARATORS:
        raise ValueError(f"{file} has no cells to separate: it is not a .csv or .tsv file")
    if suffix in SEPARATORS:
        what = f"{file} (names in its first line)"
        return _chosen(what, _separated(file, separator), column=column)
    if suffix == ".jsonl":
        return _chosen(str(file), _json_lines(file), column=column)
    if suffix == ".parquet":
        return _chosen(str(file), *_parquet(file), column=column)
    if suffix and suffix not in SUFFIXES:
        raise ValueError(f"{file}: texts are in {', '.join(SUFFIXES)} files, not {suffix}")
    if column is not None:
        raise ValueError(f"{file} has no columns: columns are in {', '.join(TABLE_SUFFIXES)} files")
    if suffix in FASTA_SUFFIXES:
        fasta = read_fasta(file)
        if not any(fasta.sequences):
            raise ValueError(f"{file} has no sequence in it")
        note = f"{file}: {len(fasta.sequences)} sequences; their headers are in the column header"
        headers: Columns = {"header": [*fasta.headers]}
        return TextTable(fasta.sequences, "sequence", headers, [note, *fasta.notes])
    lines = read_lines(file)
    return TextTable(lines, notes=[*_doubts(file, lines)])


def _doubts(file: Path, lines: Sequence[str]) -> Iterable[str]:
    """Yield what may be wrong with reading a text in each line."""
    if not file.suffix:
        yield f"{file}: {len(lines)} texts, one in each line"
    for begin, kind in ((">", "FASTA"), ("{", "JSON Lines")):
        if lines[0].startswith(begin):
            suffix = FASTA_SUFFIXES[0] if begin == ">" else ".jsonl"
            note = f"{file} begins as {kind} does, but its lines are read as texts"
            yield f"{note}: if it is {kind}, name it {suffix}"


def is_file(name: str) -> bool:
    """Return whether a file with this name exists, or a pipe, such as that of <(…) in a shell."""
    try:
        return Path(name).exists() and not Path(name).is_dir()
    except OSError:  # a text is too long for the name of a file
        return False


def _separated(file: Path, separator: str | None) -> Columns:
    """Read a .csv or .tsv file. Its first line has the names. A blank line is a row only if the
    table has one column."""
    delimiter = "\t" if separator == r"\t" else separator or SEPARATORS[file.suffix.lower()]
    if len(delimiter) != 1:
        raise ValueError(f"a separator is one character, such as ';', not {delimiter!r}")
    try:
        with file.open(newline="", encoding="utf-8-sig") as source:
            reader = csv.reader(source, delimiter=delimiter, strict=True)
            names = next(reader, [])
            _check_names(str(file), names)
            if separator is None and len(names) == 1:
                _check_separator(file, names[0])
            rows = []
            for cells in reader:
                if cells and len(cells) != len(names):
                    message = f"{len(cells)} cells, but the first line has {len(names)}"
                    cure = "a text with a separator in it is quoted"
                    raise ValueError(f"{file}, line {reader.line_num} has {message}: {cure}")
                if cells or len(names) == 1:
                    rows.append(cells or [""])
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: {error}") from None
    except csv.Error as error:
        raise ValueError(f"{file}, line {reader.line_num}: {error}") from None
    while len(names) == 1 and rows and rows[-1] == [""]:  # blank lines at the end
        rows.pop()
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def _check_names(what: str, names: Sequence[str]) -> None:
    """Raises ValueError if there are none, or some are equal."""
    if not names:
        raise ValueError(f"{what} has no columns in it")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{what} has several columns of one name: {', '.join(repeated)}")


def _check_separator(file: Path, name: str) -> None:
    """Raises ValueError if the only name contains a separator."""
    for other in OTHER_SEPARATORS:
        if other in name:
            shown = repr(other)
            message = f"{file} has one column, {name!r}. If its cells are separated by {shown}"
            raise ValueError(f"{message}, give --sep {shown}")


def _json_lines(file: Path) -> Columns:
    """Read a file with an object of JSON in each line; a value that a row lacks is None."""
    rows = []
    for number, line in read_numbered_lines(file):
        try:
            row = json.loads(line, parse_constant=_constant, object_pairs_hook=_unique)
        except ValueError as error:
            raise ValueError(f"{file}, line {number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f'{file}, line {number} is not a JSON object, such as {{"text": …}}')
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _constant(name: str) -> None:
    """Return None for NaN, a value that a row lacks. Raises ValueError for infinity."""
    if name != "NaN":
        raise ValueError(f"{name} is no value")


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    """Return an object. Raises ValueError for a name that it has twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("an object has the same name twice")
    return row


def _parquet(file: Path) -> tuple[Columns, frozenset[str]]:
    """Read a .parquet file, with the names of the columns that were the index of a DataFrame."""
    table = needed("pyarrow.parquet", "frames").read_table(file)
    _check_names(str(file), table.column_names)
    try:
        metadata = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
        names = metadata["index_columns"]
    except (ValueError, RecursionError, TypeError, KeyError):
        names = []
    index = frozenset(name for name in names or () if isinstance(name, str))
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return {name: [*map(_plain, values)] for name, values in columns.items()}, index


def _plain(value: Any) -> Any:
    """Return a value that JSON has, such as the text of a date."""
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str | int | float | list | dict | None) else str(value)


def _of_frame(frame: Any, column: str | None) -> TextTable:
    names = [*map(str, frame.columns)]
    _check_names("the table", names)
    columns: Columns = {
        name: [*frame[label]] for name, label in zip(names, frame.columns, strict=True)
    }
    index = frame.index if _is_pandas(frame) else None
    table = _chosen("the table", columns, column=column)
    return TextTable(table.texts, table.column, table.columns, table.notes, index)


def _is_pandas(values: Any) -> bool:
    """Return whether these are a DataFrame or a Series: a list also has an `index`."""
    return hasattr(values, "iloc")


def _chosen(
    what: str,
    columns: Columns,
    index: frozenset[str] = frozenset(),
    column: str | None = None,
) -> TextTable:
    """Return the texts of a column, by default of the only one that has text and is no index.
    Raises ValueError."""
    if column is None:
        texts = [name for name, values in columns.items() if _has_text(values)]
        texts = [name for name in texts if name not in index] or texts
        if not texts:
            raise ValueError(f"{what} has no column of text; it has {_names(columns)}")
        if len(texts) > 1:
            note = f"{what} has several columns of text: {_names(texts)}"
            raise ValueError(f"{note}. Name the one that is scored: --column {texts[0]}")
        (column,) = texts
    if column not in columns:
        raise ValueError(f"{what} has no column {column}; it has {_names(columns)}")
    values = [
        _text(value, f"{what}: row {row} of column {column}")
        for row, value in enumerate(columns[column])
    ]
    if not any(value.strip() for value in values):
        raise ValueError(f"{what} has no text in column {column}")
    other = {name: values for name, values in columns.items() if name != column}
    note = f"{what}: {len(values)} texts of column {column}"
    if empty := sum(not value.strip() for value in values):
        note += f", {empty} of them empty"
    if marks := sorted({value for value in values if value in MISSING_CELLS and value}):
        note += f" (a cell {marks[0]!r} is read as text)"
    if other:
        note += f"; other columns: {_names(other)}"
    return TextTable(values, column, other, [note])


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _has_text(values: Iterable[Any]) -> bool:
    return any(isinstance(value, str) and not _is_number(value) for value in values)


def _is_number(cell: str) -> bool:
    """Return whether a cell is a number, also one with a decimal comma, or is missing."""
    if cell.strip() in MISSING_CELLS:
        return True
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True


def _text(value: Any, where: str) -> str:
    """Return the text of a cell, empty if it has none. Raises ValueError."""
    if isinstance(value, str):
        return value
    if is_missing(value):
        return ""
    raise ValueError(f"{where} is {value!r}, not text")


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or pandas' NA or NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, Real) and value != value


def joined(rows: Iterable[Json], columns: Sequence[str], table: TextTable) -> dict[str, str]:
    """Add the other columns of a table to the rows of its result, by their `row`. Return the names
    of the columns there: a name that the result has gets `input_` before it."""
    names: dict[str, str] = {}
    for name in table.columns:
        new = name
        while new in columns or new in names.values():
            new = f"input_{new}"
        names[name] = new
    for row in rows:
        row.update({new: table.columns[name][row["row"]] for name, new in names.items()})
    return names
