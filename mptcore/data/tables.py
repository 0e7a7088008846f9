"""Read tables of numbers: .csv, .tsv and .parquet files."""

import csv as python_csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mptcore.data.files import MISSING, Floats, UnreadableError, told_of
from mptcore.data.headers import is_header
from mptcore.specs.data.reading import TableOptions

SAMPLE_LINES = 1000
"""Lines that decide whether the first one has names."""
QUOTED_LINES = 100
"""Lines that are searched for quotes."""
LONGEST_LINE = 10_000_000
MAX_NAMED = 10
MAX_CHECKED = 100_000
"""Maximum number of a column's cells that are compared with their rounded values."""
EXACT = 2.0**53
"""Whole numbers up to this one are exact in float64."""
MAX_ID_BYTES = 1000
MAX_IDS_BYTES = 256 * 2**20
BYTES_OF_ID = 8
"""Bytes of an id besides its text, in Arrow."""
MARKUP = ("[", "{", "<!", "<?", "<html", "<table", "<xml")
"""Beginnings of files that are no tables."""
ROWS_ALIKE = ". Rows have as many cells as the names: remove titles, notes and totals"
ABOVE = ": a table has two columns or more; remove titles and comments above their names"
TOO_LONG = "a line is longer than 1 MiB: line breaks are missing, or the table is so wide: use .npy"
NAMELESS = ("Unnamed: 0", "__index_level_0__")
"""Names of a column that was the index of a pandas table."""
INDEX = "index"
"""Name of the ids from a column without a name."""


@dataclass(frozen=True)
class Table:
    """Numbers of a table, with the names of their columns and the ids of the rows."""

    x: Floats  # (N, D), NaN where a value is missing
    columns: list[str]
    ids: dict[str, Any]
    """Columns that identify the rows, as Arrow arrays of text."""
    header: bool | None
    """True if the first line has the names. None: the format has names of its own."""
    left_out: dict[str, str]
    """Columns that are neither numbers nor ids, with the reason."""
    notes: list[str]
    """Sentences about cells that were changed."""
    row_name: Callable[[int], str]
    """Return a name for a row of `x`: its line in a text file, or its number."""


@dataclass
class _Columns:
    """Columns of a table as they are read."""

    file: "_TextFile | None" = None
    values: dict[str, Floats] = field(default_factory=dict)
    ids: dict[str, Any] = field(default_factory=dict)
    not_numbers: dict[str, str] = field(default_factory=dict)
    """Columns of other values, with the first of them."""
    empty: dict[str, str] = field(default_factory=dict)
    """Columns without a value that are left out, with this reason."""
    notes: list[str] = field(default_factory=list)

    def row_name(self, row: int) -> str:
        """Return a name for a row: its line in a text file, or its number."""
        return f"row {row}" if self.file is None else self.file.row(row)

    def table(self, options: TableOptions) -> Table:
        """Return the table. Raises UnreadableError if a column is not numbers, and may not be left
        out."""
        if self.not_numbers and not options.drop_non_numeric:
            first = islice(self.not_numbers.items(), MAX_NAMED)
            shown = [f"column {name} is not numbers: {why}" for name, why in first]
            if (more := len(self.not_numbers) - MAX_NAMED) > 0:
                shown.append(f"and {more} more columns")
            raise UnreadableError(f"{'; '.join(shown)}. {LEAVE_OUT}")
        if options.drop_non_numeric:
            for name in [name for name, values in self.values.items() if np.isnan(values).all()]:
                del self.values[name]
                self.empty[name] = "it has no value"
        if not self.values:
            raise UnreadableError("it has no column of numbers")
        for name, cells in self.ids.items():
            _check_ids(name, cells)
            self.ids[name] = _on_one_line(cells)
        x = np.column_stack([*self.values.values()])
        header = None if self.file is None else self.file.header
        left_out = {name: f"not numbers: {why}" for name, why in self.not_numbers.items()}
        left_out |= self.empty
        return Table(x, [*self.values], self.ids, header, left_out, self.notes, self.row_name)


LEAVE_OUT = (
    "Leave such columns out: --index NAME keeps one as an id of the rows, --drop-non-numeric drops "
    "all (in a request index=NAME or drop_non_numeric=yes)"
)


def read_table(path: Path, options: TableOptions) -> Table:
    """Return the numbers of a table. Raises UnreadableError."""
    import pyarrow as arrow

    try:
        return _read_parquet(path, options) if path.suffix == ".parquet" else _read(path, options)
    except arrow.ArrowException as error:
        reason = TOO_LONG if "straddling" in str(error) else told_of(path, error)
        raise UnreadableError(f"not a readable {path.suffix} file: {reason}") from error


def _read_parquet(path: Path, options: TableOptions) -> Table:
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    schema = file.schema_arrow
    _refuse_duplicates(schema.names)
    pandas_index = index_columns(schema)
    ids = [*dict.fromkeys([*_known(options.index, schema.names), *pandas_index])]
    nameless = [name for name in schema.names if name in NAMELESS and name not in ids]
    columns = _Columns()
    kept = []
    for place in schema:
        if place.name in ids:
            continue
        if _is_numeric(place.type) or place.name in nameless:
            kept.append(place.name)
            continue
        first = next(file.iter_batches(1, columns=[place.name]), None)
        cell = "" if first is None or not len(first) else str(first.column(0)[0])
        columns.not_numbers[place.name] = f"it has {place.type}, such as {cell[:40]!r}"
    if columns.not_numbers and not options.drop_non_numeric:
        columns.table(options)  # refuses, before more is read
    data = file.read(columns=[*kept, *ids])
    for name in kept:
        if _is_numeric(data.column(name).type):
            _add_numbers(columns, name, data.column(name))
    columns.ids |= {name: _as_ids(name, data.column(name)) for name in ids}
    for name in nameless:
        _add_nameless(columns, name, _as_ids(name, data.column(name)), is_index=True)
    return columns.table(options)


def _check_ids(name: str, cells: Any) -> None:
    """Raises UnreadableError if ids take too much memory. A run keeps them."""
    from pyarrow import compute

    lengths = compute.binary_length(cells)
    total = (compute.sum(lengths).as_py() or 0) + BYTES_OF_ID * len(cells)
    if (compute.max(lengths).as_py() or 0) > MAX_ID_BYTES or total > MAX_IDS_BYTES:
        limits = f"at most {MAX_ID_BYTES} bytes each and {MAX_IDS_BYTES >> 20} MiB in all"
        cure = "leave the column out (--drop-non-numeric), or write the table without its index"
        raise UnreadableError(f"column {name}: ids take {limits}: {cure}")


def _on_one_line(cells: Any) -> Any:
    """Return ids with a blank in place of line breaks and other control characters."""
    from pyarrow import compute

    return compute.replace_substring_regex(cells, r"[\x00-\x1f\x7f]+", " ")


def _as_ids(name: str, cells: Any) -> Any:
    """Return the cells of a Parquet file's column as text. Raises UnreadableError."""
    import pyarrow as arrow

    try:
        return cells.combine_chunks().cast("string").fill_null("")
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
    known = {*schema.names}
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str) and name in known]


def _is_numeric(kind: Any) -> bool:
    """Return whether values of an Arrow type are numbers. `null` has nothing but missing values."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_numeric(kind.value_type)
    tests = (
        *(types.is_integer, types.is_floating, types.is_boolean, types.is_decimal),
        types.is_null,
    )
    return any(test(kind) for test in tests)


@dataclass(frozen=True)
class _TextFile:
    """A .csv or .tsv file, and how it is read."""

    path: Path
    separator: str
    names: list[str]
    nameless: list[str]
    """Names that stand for a blank one."""
    header: bool
    skipped: int
    """Number of lines before the first row."""
    options: TableOptions

    def columns(self, names: Sequence[str], as_text: bool = False) -> Any:
        """Return some columns as an Arrow table, of the types of their cells or as text."""
        import pyarrow as arrow
        from pyarrow import csv

        return csv.read_csv(
            self.path,
            read_options=csv.ReadOptions(column_names=self.names, skip_rows=self.skipped),
            parse_options=csv.ParseOptions(
                delimiter=self.separator, newlines_in_values=self.has_quotes
            ),
            convert_options=csv.ConvertOptions(
                include_columns=names,
                column_types=dict.fromkeys(names, arrow.string()) if as_text else None,
                decimal_point=self.options.decimal,
            ),
        )

    def texts(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the cells of columns as they are written, as Arrow arrays by name."""
        names = [*dict.fromkeys(names)]
        if not names:
            return {}
        cells = self.columns(names, as_text=True).columns
        return {name: c.combine_chunks() for name, c in zip(names, cells, strict=True)}

    def row(self, row: int) -> str:
        """Return a name for a row: its line from 1, or its number if cells have line breaks."""
        return f"line {self.lines[row]}" if self.lines else f"row {row} (counted from 0)"

    @cached_property
    def lines(self) -> list[int]:
        """Numbers of the lines of the rows. Empty if there are not as many lines as rows."""
        lines = self._full_lines
        return lines if len(lines) == len(self.columns(self.names[:1], as_text=True)) else []

    @property
    def count(self) -> int:
        """Number of lines below the names that are not blank."""
        return len(self._full_lines)

    @cached_property
    def _full_lines(self) -> list[int]:
        with self.path.open(encoding="utf-8", errors="replace") as file:
            rows = islice(enumerate(file, 1), self.skipped, None)
            return [number for number, line in rows if line.strip()]

    @cached_property
    def has_quotes(self) -> bool:
        return self._has(b'"')

    @cached_property
    def has_hexadecimals(self) -> bool:
        """Return whether cells may be numbers such as 0x1F, which Arrow reads and others do not."""
        return self._has(b"0x") or self._has(b"0X")

    def _has(self, text: bytes) -> bool:
        with self.path.open("rb") as file:
            return any(text in line for line in file)


def _read(path: Path, options: TableOptions) -> Table:
    file = _text_file(path, options)
    _refuse_duplicates(file.names)
    ids = _known(options.index, file.names)
    measured = [name for name in file.names if name not in ids]
    if not measured:
        raise UnreadableError("it has no column of numbers")
    columns = _Columns(file=file)
    data = dict(zip(measured, _parsed(file, measured).columns, strict=True))
    nameless = [name for name in file.nameless if name in data]
    written = [name for name, cells in data.items() if _is_shown_otherwise(cells, file)]
    texts = file.texts([*ids, *written, *nameless])
    for name, cells in data.items():
        _add_cells(columns, name, cells, texts.get(name), file)
    columns.ids |= {name: texts[name] for name in ids}
    for name in nameless:
        is_index = name == file.names[0] or name in NAMELESS
        _add_nameless(columns, name, texts[name], is_index)
    if file.has_quotes and not file.lines:
        rows = len(data[measured[0]])
        note = f"cells in quotes have line breaks: {file.count} lines are read as {rows} rows"
        columns.notes.append(note)
    return columns.table(options)


def _is_shown_otherwise(cells: Any, file: _TextFile) -> bool:
    """Return whether cells were converted so that their text may be needed: dates, numbers that may
    be rounded whole ones, and whole numbers that may be hexadecimal."""
    from pyarrow import compute, types

    if types.is_integer(cells.type):
        return file.has_hexadecimals
    if types.is_floating(cells.type):
        return bool(compute.any(compute.greater_equal(compute.abs(cells), EXACT)).as_py())
    return not (_is_numeric(cells.type) or types.is_string(cells.type))


def _parsed(file: _TextFile, names: list[str]) -> Any:
    """Return the cells of columns. Raises UnreadableError for rows with other numbers of cells."""
    import pyarrow as arrow

    try:
        return file.columns(names)
    except arrow.ArrowInvalid as error:
        counts = re.search(r"Expected (\d+) columns, got (\d+): (.*)", str(error), re.DOTALL)
        if counts is None:
            raise
        expected, found, row = counts.groups()
        with file.path.open(encoding="utf-8-sig", errors="replace") as lines:
            same = (n for n, line in enumerate(lines, 1) if line.strip("\n") == row)
            number = next(same, None)
        where = "a row" if number is None else f"line {number}"
        if not row.strip():
            raise UnreadableError(f"{where} has blanks only: remove it") from error
        detail = f"{where} has {found} cells, the first line {expected}: {row.strip()[:60]!r}"
        advice = _other_separator(file.separator, row)
        raise UnreadableError(f"{detail}{advice or ROWS_ALIKE}") from error


def _text_file(path: Path, options: TableOptions) -> _TextFile:
    separator = options.separator(path.suffix[1:])
    lines = _first_lines(path)
    if not lines:
        raise UnreadableError("the file is empty")
    first, following = lines[0][1], [line for _, line in lines[1:]]
    reader = python_csv.reader([first, *following], delimiter=separator)
    try:
        cells = next(reader)
        last = lines[reader.line_num - 1][0]  # of the first row, which may have line breaks
        rows = [*reader]
    except python_csv.Error as error:
        raise UnreadableError(f"its first lines cannot be read: {error}") from error
    shown = f"its first line, {first.strip()[:60]!r},"
    if first.lstrip('"').startswith("sep="):
        raise UnreadableError(f"{shown} is Excel's: remove it, and give that separator by --sep")
    if first.startswith(MARKUP):
        raise UnreadableError(f"{shown} is that of JSON, HTML or XML, not of a table")
    if len(cells) < 2:
        advice = _other_separator(separator, first) or ABOVE
        raise UnreadableError(f"{shown} has one cell{advice}")
    header = options.header
    if header is None:
        quoted = _quoted(first, separator)
        for line in following[:QUOTED_LINES]:
            quoted -= _quoted(line, separator)
        header = is_header(cells, rows, options, quoted)
    if not header:
        names = [f"f{c}" for c in range(len(cells))]
        return _TextFile(path, separator, names, names[-1:], header, lines[0][0] - 1, options)
    names = [" ".join(cell.split()) for cell in cells]
    blank = [c for c, name in enumerate(names) if not name]
    for c in blank:
        names[c] = f"column {c + 1}" + " (no name)" * (f"column {c + 1}" in names)
    nameless = [name for c, name in enumerate(names) if c in blank or name in NAMELESS]
    return _TextFile(path, separator, names, nameless, header, last, options)


def _quoted(line: str, separator: str) -> set[int]:
    """Return the places of the cells in a line that are in quotes and not empty."""
    other = re.escape(separator)
    cells = re.findall(rf' *("(?:[^"]|"")*")? *([^{other}]*)(?:{other}|$)', line.rstrip("\r\n"))
    return {place for place, (quoted, _) in enumerate(cells) if quoted not in ("", '""')}


def _first_lines(path: Path) -> list[tuple[int, str]]:
    """Return the first lines that are not blank, numbered from 1. Raises UnreadableError."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = islice(iter(lambda: file.readline(LONGEST_LINE), ""), SAMPLE_LINES)
            return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    except UnicodeDecodeError as error:
        detail = f"it is not UTF-8 text ({error.reason} at byte {error.start})"
        raise UnreadableError(f"{detail}: save it as UTF-8") from error


def _other_separator(separator: str, line: str) -> str:
    """Return advice if the cells of a line seem to have another separator."""
    others = {";": "';'", "\t": "tab", "|": "'|'", ",": "','"}
    seen = [name for other, name in others.items() if other in line and other != separator]
    if not seen:
        return ""
    advice = f". If its cells are separated by {seen[0]}, give --sep {seen[0]}"
    return f"{advice}, and --decimal ',' for decimal commas" if separator == "," else advice


def _refuse_duplicates(names: Sequence[str]) -> None:
    """Raise UnreadableError if columns have the same name: one would be read for the other."""
    seen: set[str] = set()
    twice = dict.fromkeys(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    if twice:
        shown = ", ".join(repr(name) for name in [*twice][:MAX_NAMED])
        raise UnreadableError(f"several columns have the same name: {shown}; rename them")


def _known(names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return these names. Raises UnreadableError if the table has no such column."""
    if missing := [name for name in names if name not in columns]:
        have = ", ".join(columns[:MAX_NAMED]) + (", …" if len(columns) > MAX_NAMED else "")
        raise UnreadableError(f"it has no column {missing[0]}; it has {have}")
    return [*names]


def _add_cells(
    columns: _Columns, name: str, cells: Any, written: Any | None, file: _TextFile
) -> None:
    """Add a column of a text file. Cells that Arrow took as text may be numbers with blanks around
    them or with thousands separators. `written` are the cells as text, where Arrow has converted
    them."""
    from pyarrow import compute, types

    if types.is_binary(cells.type):
        raise UnreadableError(f"column {name} is not UTF-8 text: save the file as UTF-8")
    is_hexadecimal = types.is_integer(cells.type) and written is not None
    if _is_numeric(cells.type) and not is_hexadecimal:
        return _add_numbers(columns, name, cells, written)
    cells = cells.combine_chunks() if written is None else written
    decimal = re.escape(file.options.decimal)
    text = compute.utf8_trim_whitespace(cells)
    if thousands := file.options.thousands:
        if thousands == " ":
            text = compute.replace_substring_regex(text, OTHER_BLANKS, " ")
        groups = rf"^[+-]?\d{{1,3}}({re.escape(thousands)}\d{{3}})+({decimal}\d*)?$"
        plain = compute.replace_substring(text, thousands, "")
        text = compute.if_else(compute.match_substring_regex(text, groups), plain, text)
    number = rf"^[+-]?(\d+({decimal}\d*)?|{decimal}\d+)([eE][+-]?\d+)?$"
    is_missing = compute.is_in(text, value_set=_missing_cells())
    is_good = compute.or_(is_missing, compute.match_substring_regex(text, number))
    bad = np.flatnonzero(~is_good.to_numpy(zero_copy_only=False))
    if len(bad):
        cell = str(cells[int(bad[0])])[:40]
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        advice = _format_advice(cell, file.options)
        columns.not_numbers[name] = f"{file.row(int(bad[0]))} is {cell!r}{more}{advice}"
        return None
    text = compute.if_else(is_missing, None, text)
    return _add_numbers(columns, name, compute.replace_substring(text, file.options.decimal, "."))


def _format_advice(cell: str, options: TableOptions) -> str:
    """Return advice for a cell that may have a decimal comma or thousands separators."""
    grouped = re.fullmatch(r"[+-]?\d{1,3}([,. ']\d{3})+([,.]\d+)?|[+-]?\d+,\d+", cell.strip())
    if not grouped or options.thousands or options.decimal == ",":
        return ""
    return " (for decimal commas give --decimal ',', for grouped digits --thousands)"


def _missing_cells() -> Any:
    import pyarrow as arrow

    return arrow.array(sorted(MISSING))


def _add_numbers(columns: _Columns, name: str, cells: Any, written: Any | None = None) -> None:
    """Add a column of numbers in float64, and note the cells that are changed by this. `written`
    are the cells as text."""
    import pyarrow as arrow
    from pyarrow import types

    if types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if types.is_boolean(cells.type):
        columns.notes.append(f"column {name}: true and false are read as 1 and 0")
        cells = cells.cast("int8")
    floats = cells.cast("float64", safe=False).to_numpy(zero_copy_only=False)
    columns.values[name] = floats
    large = np.flatnonzero(np.abs(floats) >= EXACT)[:MAX_CHECKED]
    exact = (cells if written is None else written).take(arrow.array(large, "int64")).to_pylist()
    for row, cell in zip(large.tolist(), exact, strict=True):
        is_whole = not isinstance(cell, float) and WHOLE.fullmatch(str(cell))
        if is_whole and np.isfinite(floats[row]) and int(cell) != int(floats[row]):
            where = f"{columns.row_name(row)}, {cell}"
            columns.notes.append(f"column {name}: {ROUNDED}, such as {where}")
            return


OTHER_BLANKS = "[\u00a0\u202f]"
"""Blanks that do not break a line: French and Swiss programs group digits by them."""
WHOLE = re.compile(r"\s*[+-]?\d{1,400}\s*")
ROUNDED = "whole numbers beyond 2^53 are rounded to float64"


def _add_nameless(columns: _Columns, name: str, cells: Any, is_index: bool) -> None:
    """Leave out a column without a name if it is empty. Make it the ids of the rows if it is where
    an index of pandas is, and is text or distinct whole numbers as such an index. Raises
    UnreadableError for any other."""
    values = columns.values.get(name)
    if values is not None and np.isnan(values).all():
        del columns.values[name]
        columns.empty[name] = "it has no name and no value"
        return
    if name.startswith("f"):  # the last column of a file without names
        return
    is_whole = values is None or bool((values == np.round(values)).all())
    if not is_index or not is_whole or len(cells.unique()) < len(cells):
        cure = f"name it, make it an id by --index '{name}'"
        if columns.file is not None:
            cure += ", or give --no-header if the first line has data"
        raise UnreadableError(f"{name} has no name: {cure}")
    columns.values.pop(name, None)
    columns.not_numbers.pop(name, None)
    columns.ids[name if INDEX in columns.ids else INDEX] = cells
