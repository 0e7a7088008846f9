"""Read tables in text files: .csv and .tsv."""

import csv as python_csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mptcore.data.files import MISSING, UnreadableError
from mptcore.data.headers import is_header
from mptcore.data.table_columns import (
    EXACT,
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

SAMPLE_LINES = 1000
"""Lines that decide whether the first one has names."""
LONGEST_LINE = 10_000_000
MARKUP = ("[{", "[[", '["', '{"', "<!", "<?", "<html", "<table", "<xml")
"""Beginnings of files that are no tables."""
UNNAMED_ROWS = (
    ". If the first line lacks the name of the column of row names, as R's write.table leaves it "
    "out, put a name before it; else remove titles, notes and totals"
)
ROWS_ALIKE = ". Rows have as many cells as the names: remove titles, notes and totals"
BLANKS = ". Cells are separated by commas, not by blanks; remove titles and comments"
ABOVE = ": a table has two columns or more; remove titles and comments above their names"
OTHER_BLANKS = "[\u00a0\u202f]"
"""Blanks that do not break a line: French and Swiss programs group digits by them."""


def read_separated(path: Path, options: TableOptions) -> Table:
    """Return the numbers of a .csv or .tsv file. Raises UnreadableError and Arrow's errors."""
    file = _text_file(path, options)
    refuse_duplicates(file.names)
    ids = existing_columns(options.index, file.names)
    measured = [name for name in file.names if name not in ids]
    if not measured:
        raise UnreadableError("it has no column of numbers")
    columns = Columns(file.header, file.row)
    data = dict(zip(measured, _parsed(file, measured).columns, strict=True))
    nameless = [name for name in file.nameless if name in data]
    written = [name for name, cells in data.items() if _is_shown_otherwise(cells, file)]
    texts = file.texts([*ids, *written, *nameless])
    rows = len(data[measured[0]])
    for name in measured:  # each column leaves the memory once it is converted
        _add_cells(columns, name, data.pop(name), texts.get(name), file)
    columns.ids |= {name: texts[name] for name in ids}
    for name in nameless:
        is_index = name == file.names[0] or bool(SAVED_INDEX.fullmatch(name))
        add_nameless(columns, name, texts[name], is_index)
    if file.has_quotes and not file.lines:
        note = f"cells in quotes have line breaks: {file.count} lines are read as {rows} rows"
        columns.notes.append(note)
    return columns.table(options)


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
            return [number for number, line in rows if line.strip("\n ")]

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
    if first.startswith(MARKUP) or first.strip() in ("[", "{"):
        raise UnreadableError(f"{shown} is that of JSON, HTML or XML, not of a table")
    if len(cells) < 2:
        blanks = BLANKS if len(first.split()) > 1 else ABOVE
        advice = _other_separator(separator, first) or blanks
        raise UnreadableError(f"{shown} has one cell{advice}")
    if not any(cell.strip() for cell in cells):
        raise UnreadableError("its first line has empty cells only: remove it")
    header = options.header
    if header is None and {*options.index} & {" ".join(cell.split()) for cell in cells}:
        header = True  # an id is named by this line
    if header is None:
        quoted = _quoted(first, separator)
        for line in following:
            quoted -= _quoted(line, separator)
        needed = {separator, '"', options.decimal, options.thousands or separator} - {"."}
        quoted -= {c for c, cell in enumerate(cells) if any(mark in cell for mark in needed)}
        try:
            header = is_header(cells, rows, options, quoted)
        except UnreadableError as error:
            raise UnreadableError(f"{error}{_other_separator(separator, first)}") from None
    if not header:
        names = [f"f{c}" for c in range(len(cells))]
        return _TextFile(path, separator, names, names[-1:], header, lines[0][0] - 1, options)
    names = [" ".join(cell.split()) for cell in cells]
    blank = [c for c, name in enumerate(names) if not name]
    for c in blank:
        names[c] = f"column {c + 1}" + " (no name)" * (f"column {c + 1}" in names)
    saved = re.compile(r"Unnamed: \d+")  # as pandas names a blank one
    nameless = [
        name
        for c, name in enumerate(names)
        if c in blank or SAVED_INDEX.fullmatch(name) or saved.fullmatch(name)
    ]
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
            return [(number, line) for number, line in enumerate(lines, 1) if line.strip("\n ")]
    except UnicodeDecodeError as error:
        detail = f"it is not UTF-8 text ({error.reason} at byte {error.start})"
        raise UnreadableError(f"{detail}: save it as UTF-8") from error


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
        if int(found) == int(expected) + 1:
            advice = advice or UNNAMED_ROWS
        raise UnreadableError(f"{detail}{advice or ROWS_ALIKE}") from error


def _other_separator(separator: str, line: str) -> str:
    """Return advice if the cells of a line seem to have another separator."""
    others = {";": "';'", "\t": "tab", "|": "'|'", ",": "','"}
    seen = [name for other, name in others.items() if other in line and other != separator]
    if not seen:
        return ""
    advice = f". If its cells are separated by {seen[0]}, give --sep {seen[0]}"
    return f"{advice}, and --decimal ',' for decimal commas" if separator == "," else advice


def _is_shown_otherwise(cells: Any, file: _TextFile) -> bool:
    """Return whether cells were converted so that their text may be needed: dates, numbers that may
    be rounded whole ones, and whole numbers that may be hexadecimal."""
    from pyarrow import compute, types

    if types.is_integer(cells.type):
        return file.has_hexadecimals
    if types.is_floating(cells.type):
        return bool(compute.any(compute.greater_equal(compute.abs(cells), EXACT)).as_py())
    return not (is_numeric(cells.type) or types.is_string(cells.type))


def _add_cells(
    columns: Columns, name: str, cells: Any, written: Any | None, file: _TextFile
) -> None:
    """Add a column of a text file. Cells that Arrow took as text may be numbers with blanks around
    them or with thousands separators. `written` are the cells as text, where Arrow has converted
    them."""
    from pyarrow import compute, types

    if types.is_binary(cells.type):
        raise UnreadableError(f"column {name} is not UTF-8 text: save the file as UTF-8")
    is_hexadecimal = types.is_integer(cells.type) and written is not None
    if is_numeric(cells.type) and not is_hexadecimal:
        return add_numbers(columns, name, cells, written)
    cells = cells.combine_chunks() if written is None else written
    decimal = re.escape(file.options.decimal)
    text = compute.utf8_trim_whitespace(cells)
    if thousands := file.options.thousands:
        if thousands == " ":
            text = compute.replace_substring_regex(text, OTHER_BLANKS, " ")
        if thousands == "'":
            text = compute.replace_substring(text, "’", "'")
        groups = rf"^[+-]?[1-9]\d{{0,2}}({re.escape(thousands)}\d{{3}})+({decimal}\d*)?$"
        plain = compute.replace_substring(text, thousands, "")
        text = compute.if_else(compute.match_substring_regex(text, groups), plain, text)
    number = rf"^[+-]?(\d+({decimal}\d*)?|{decimal}\d+)([eE][+-]?\d+)?$"
    is_missing = compute.is_in(text, value_set=_missing_cells())
    is_good = compute.or_(is_missing, compute.match_substring_regex(text, number))
    bad = np.flatnonzero(~is_good.to_numpy(zero_copy_only=False))
    is_named = file.header and name not in file.nameless
    if len(bad) == len(cells) and is_named and are_ids(text, file.options):
        columns.ids[name] = cells
        return None
    if len(bad):
        cell = str(cells[int(bad[0])])[:40]
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        advice = _format_advice(cell, file.options)
        columns.not_numbers[name] = f"{file.row(int(bad[0]))} is {cell!r}{more}{advice}"
        return None
    text = compute.if_else(is_missing, None, text)
    return add_numbers(columns, name, compute.replace_substring(text, file.options.decimal, "."))


def _format_advice(cell: str, options: TableOptions) -> str:
    """Return advice for a cell that may have a decimal comma or thousands separators."""
    grouped = re.fullmatch(r"[+-]?\d{1,3}([,. ']\d{3})+([,.]\d+)?|[+-]?\d+,\d+", cell.strip())
    if not grouped or options.thousands or options.decimal == ",":
        return ""
    return " (for decimal commas give --decimal ',', for grouped digits --thousands)"


def _missing_cells() -> Any:
    import pyarrow as arrow

    return arrow.array(sorted(MISSING))
