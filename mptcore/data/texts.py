"""Read texts from GLUE, files, uploads, or the spec itself."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, assert_never

from mptcore.data.files import UnreadableError, error_text, stored_file
from mptcore.data.uploads import Inspection
from mptcore.protocol.records import RunError
from mptcore.runtime import inputs
from mptcore.specs import GlueText, PlainText, SpecError, TextSource, parse_json
from mptcore.specs.text import GLUE_HUB, UPLOAD_FORMATS

NO_TEXT = ("label", "idx")
"""Columns of GLUE that hold no text. The other one or two do."""
TEXT_TYPES = ("is_string", "is_large_string", "is_string_view")
"""Names of the tests of pyarrow.types for columns of text."""
LINES = "lines"
"""Name of the column for the lines of a .txt file."""

BYTE_ORDER_MARK = "\ufeff"

NO_COLUMNS = "a .txt file has no columns: use .jsonl, .csv or .parquet"

Rows = Sequence[tuple[str, ...]]
"""Single texts, or pairs of texts. A text is empty where its row has none."""


class Table(NamedTuple):
    """Rows of columns that hold text."""

    columns: tuple[str, ...]
    rows: list[tuple[str | None, ...]]

    def of(self, wanted: Sequence[str]) -> Rows:
        """Return the texts of these columns for each row, empty where it has none. Raises
        UnreadableError if no row has all of them."""
        if missing := [name for name in wanted if name not in self.columns]:
            have = ", ".join(self.columns) or "none"
            raise UnreadableError(f"it has no column of text {missing[0]}; it has {have}")
        places = [self.columns.index(name) for name in wanted]
        rows = [tuple(row[i] or "" for i in places) for row in self.rows]
        if not any(map(all, rows)):
            raise UnreadableError("it has no text in it")
        return rows


def columns(spec: TextSource, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the values of some columns for each text of `texts`, in order; null where its row has
    none. Raises RunError."""
    assert isinstance(spec, PlainText)
    path, what = _file_of(spec)
    try:
        if path.suffix == ".txt":
            raise UnreadableError(NO_COLUMNS)
        rows = _json_rows(path) if path.suffix == ".jsonl" else _arrow_rows(path)
    except UnreadableError as error:
        raise RunError("invalid", f"{what} cannot be used: {error}") from error
    known = {name for row in rows for name in row}
    if missing := [name for name in names if name not in known]:
        detail = f"it has no column {missing[0]}; it has {', '.join(sorted(known))}"
        raise RunError("invalid", f"{what} cannot be used: {detail}")
    return [tuple(row.get(name) for name in names) for row in rows for _ in spec.text_columns]


def texts(spec: TextSource) -> Rows:
    """Return the texts of a source, in order; empty where a row of a table has none. Raises
    RunError."""
    match spec:
        case GlueText():
            return _glue(spec)
        case PlainText(lines=lines) if lines is not None:
            return [(_text_of(without_mark(line)) or "",) for line in lines]
        case PlainText():
            return _texts_of(*_file_of(spec), spec.text_columns)
        case _:
            assert_never(spec)


def inspect(path: Path) -> Inspection:
    """Return the contents of a text file, and its problems."""
    suffix = path.suffix.lstrip(".")
    try:
        found = read(path)
        columns = [name for name in found.columns if name != LINES]
        usable = max(sum(bool(row[i]) for row in found.rows) for i in range(len(found.columns)))
    except UnreadableError as error:
        return Inspection(suffix, problems=[str(error)])
    problems = [] if usable else ["it has no text in it"]
    empty, reading = len(found.rows) - usable, None
    if empty and usable:
        detail = f"{empty} of {len(found.rows)} rows have no text: they keep their numbers"
        reading = {"warnings": [f"{detail} and have no score"]}
    return Inspection(suffix, usable, columns=columns or None, problems=problems, reading=reading)


def read(path: Path) -> Table:
    """Read a .jsonl, .csv or .parquet file, or a .txt file, whose lines form the column LINES.
    Raises UnreadableError."""
    match path.suffix:
        case ".txt":
            return Table((LINES,), [(line,) for line in _lines(path)])
        case ".jsonl":
            rows = _json_rows(path)
            names = dict.fromkeys(n for row in rows for n, x in row.items() if isinstance(x, str))
            cells = [[row.get(name) for row in rows] for name in names]
        case ".csv" | ".parquet":
            found = _arrow(path, of_text=True)
            columns = dict(zip(found.column_names, found.columns, strict=True))
            names = dict.fromkeys(columns)
            cells = [column.to_pylist() for column in columns.values()]
        case suffix:
            raise UnreadableError(f"text is in .txt, .jsonl, .csv or .parquet files, not {suffix}")
    if not names:
        raise UnreadableError("none of its columns holds text")
    texts = ([*map(_text_of, column)] for column in cells)
    return Table(tuple(names), [*zip(*texts, strict=True)])


def _text_of(value: Any) -> str | None:
    """Return the text of a cell; None if it has none, or only blanks."""
    return value if isinstance(value, str) and value.strip() else None


def without_mark(text: str) -> str:
    """Return a text without the byte order mark that begins a file, or a line where files were
    joined."""
    return text.removeprefix(BYTE_ORDER_MARK)


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # U+2028 may be in a text
        return [line for line in map(without_mark, lines) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"it is not UTF-8 text: {error}") from error


def _json_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(_lines(path), 1):
        try:
            row = parse_json(line.encode())
        except SpecError as error:
            detail = error.problems[0].detail
            raise UnreadableError(f"line {number} is not JSON: {detail}") from error
        if not isinstance(row, dict):
            raise UnreadableError(f"line {number} is not a JSON object")
        rows.append(row)
    return rows


def _arrow_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a .csv or .parquet file. Raises UnreadableError."""
    rows: list[dict[str, Any]] = _arrow(path).to_pylist()
    return rows


def _arrow(path: Path, *, of_text: bool = False) -> Any:
    """Read a .csv or .parquet file as an Arrow table, with all columns or those of text. A column
    of a .csv file is one of numbers if all its cells are. Raises UnreadableError."""
    import pyarrow as arrow
    from pyarrow import csv, parquet

    try:
        if path.suffix == ".parquet":
            names = columns_of(parquet.read_schema(path), *TEXT_TYPES) if of_text else None
            return parquet.read_table(path, columns=names)
        found = csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True))
        if found.num_columns == 1:  # an empty line of such a file is a row without text
            options = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
            found = csv.read_csv(path, parse_options=options)
        if len({*found.column_names}) < found.num_columns:
            raise UnreadableError("several of its columns have the same name")
        if not_text := columns_of(found.schema, "is_binary"):
            raise UnreadableError(f"column {not_text[0]} is not UTF-8 text")
        return found.select(columns_of(found.schema, *TEXT_TYPES)) if of_text else found
    except MemoryError:  # Arrow's is an ArrowException too
        raise
    except (arrow.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        detail = f"not a readable {path.suffix} file: {error_text(path, error)}"
        raise UnreadableError(detail) from error


def columns_of(schema: Any, *kinds: str) -> list[str]:
    """Return the columns of an Arrow schema that have one of the given types."""
    import pyarrow as arrow

    tests = [getattr(arrow.types, kind) for kind in kinds]
    types = {  # pandas writes a column of categories as a dictionary
        one.name: one.type.value_type if arrow.types.is_dictionary(one.type) else one.type
        for one in schema
    }
    return [name for name, of in types.items() if any(test(of) for test in tests)]


def _file_of(spec: PlainText) -> tuple[Path, str]:
    """Return the file of a source and its name for messages. It is noted as an input of the run.
    Raises RunError."""
    if spec.file is None:
        what = f"the upload {spec.dataset}"
        try:
            return stored_file(str(spec.dataset), UPLOAD_FORMATS), what
        except UnreadableError as error:
            raise RunError("invalid", f"{what} cannot be used: {error}") from error
    folder = os.environ.get("MPT_DATA_DIR")
    if not folder:
        raise RunError("invalid", "MPT_DATA_DIR, the folder that holds texts, is not set")
    path = spec.local(Path(folder))
    if path is None or not path.is_file():
        raise RunError("invalid", f"there is no text {spec.file} in the folder MPT_DATA_DIR/text")
    inputs.note_used(f"MPT_DATA_DIR/text/{spec.file}", inputs.digest(path))
    return path, f"the text {spec.file}"


def _texts_of(path: Path, what: str, columns: Sequence[str]) -> Rows:
    try:
        if path.suffix == ".txt" and len(columns) > 1:
            raise UnreadableError(NO_COLUMNS)
        rows = read(path).of((LINES,) if path.suffix == ".txt" else columns)
        return [(text,) for row in rows for text in row]
    except UnreadableError as error:
        raise RunError("invalid", f"{what} cannot be used: {error}") from error


def _pairs(source: Path | Table, what: str) -> Rows:
    """Return the one or two texts of each row of GLUE. Raises RunError."""
    try:
        found = read(source) if isinstance(source, Path) else source
        return found.of([name for name in found.columns if name not in NO_TEXT][:2])
    except UnreadableError as error:
        raise RunError("invalid", f"{what} cannot be used: {error}") from error


def _glue(spec: GlueText) -> Rows:
    """Load a GLUE subset from a local copy or, if there is none, from the hub."""
    folder = os.environ.get("MPT_DATA_DIR")
    what = f"glue/{spec.local_name}"
    if folder and spec.is_local(Path(folder)):
        local = spec.local(Path(folder))
        pairs = _pairs(local, what)
        inputs.note_used(f"MPT_DATA_DIR/{what}{local.suffix}", inputs.digest(local))
        return pairs
    import datasets

    try:
        found = datasets.load_dataset(GLUE_HUB, spec.subset, split=spec.split)
    except Exception as error:  # any cause: the hub, the network, the cache
        reason = " ".join(str(error).split())[:300]
        file = f"{spec.split}.parquet into MPT_DATA_DIR/glue/{spec.subset}"
        detail = f"{what} is not here: put {file}, or let this machine reach the hub ({reason})"
        raise RunError("invalid", detail) from error
    names = tuple(name for name in found.column_names if name not in NO_TEXT)
    rows = _pairs(Table(names, [tuple(row[name] for name in names) for row in found]), what)
    inputs.note_used(f"{GLUE_HUB}/{spec.subset}/{spec.split}, the texts as JSON", _digest(rows))
    return rows


def _digest(rows: Rows) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
