"""Columns of tables: numbers in float64, ids, and what is left out of a table."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from mptcore.data.files import Floats, UnreadableError
from mptcore.specs.vectors import TableOptions

MAX_NAMED = 10
MAX_CHECKED = 100_000
"""Maximum number of a column's cells that are compared with their rounded values."""
EXACT = 2.0**53
"""Whole numbers up to this one are exact in float64."""
MAX_ID_BYTES = 1000
MAX_IDS_BYTES = 256 * 2**20
BYTES_OF_ID = 8
"""Bytes of an id besides its text, in Arrow."""
SAVED_INDEX = re.compile(r"Unnamed: 0(\.\d+)?|__index_level_\d+__")
"""Names of columns that were the index of a pandas table."""
INDEX = "index"
"""Name of the ids from a column without a name."""
ROUNDED = "whole numbers beyond 2^53 are rounded to float64"
NAME_OF_ROW = r"^(\p{L}|\d{4}-\d\d-\d\d)"
"""A pattern of ids: a word or a date, not a number with a unit."""
WHOLE = re.compile(r"\s*[+-]?\d{1,400}\s*")
LEAVE_OUT = (
    "A missing value is an empty cell or NA. Keep columns that identify the rows as ids "
    "(--index NAME; in a request index=NAME), or leave out all that are not numbers "
    "(--drop-non-numeric; in a request drop_non_numeric=yes)"
)


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
class Columns:
    """Columns of a table as they are read."""

    header: bool | None = None
    """True if the first line of a text file has the names. None: another format."""
    row_name: Callable[[int], str] = "row {}".format
    """Return a name for a row: its line in a text file, or its number."""
    values: dict[str, Floats] = field(default_factory=dict)
    """Columns of numbers."""
    ids: dict[str, Any] = field(default_factory=dict)
    """Columns that identify the rows, as Arrow arrays of text."""
    not_numbers: dict[str, str] = field(default_factory=dict)
    """Columns of other values, with the first of them."""
    empty: dict[str, str] = field(default_factory=dict)
    """Columns without a value that are left out, with this reason."""
    notes: list[str] = field(default_factory=list)

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
        left_out = {name: f"not numbers: {why}" for name, why in self.not_numbers.items()}
        left_out |= self.empty
        if len(self.values) < 2:
            reasons = [f"{name} is left out: {why}" for name, why in left_out.items()]
            message = f"it has {len(self.values)} columns of numbers, and needs two"
            raise UnreadableError("; ".join([message, *reasons[:MAX_NAMED]]))
        x = np.column_stack([*self.values.values()])
        if self.header is not None:
            rows = np.flatnonzero(~np.isnan(x).all(1))
            count = int(rows[-1]) + 1 if len(rows) else len(x)
            if count < len(x):
                self.notes.append(f"{len(x) - count} empty rows at the end are left out")
                x = x[:count]
                self.ids = {name: cells.slice(0, count) for name, cells in self.ids.items()}
        for name, cells in self.ids.items():
            _check_ids(name, cells)
            self.ids[name] = _on_one_line(cells)
            is_empty = (self.ids[name].slice(0, 2)).to_pylist()
            if len(is_empty) == 2 and not is_empty[0].strip() and is_empty[1].strip():
                message = f"the first row has no id in {name}: is it a second line of names?"
                self.notes.append(message)
        return Table(x, [*self.values], self.ids, self.header, left_out, self.notes, self.row_name)


def _check_ids(name: str, cells: Any) -> None:
    """Raises UnreadableError if ids take too much memory. A run keeps them."""
    from pyarrow import compute

    lengths = compute.binary_length(cells)
    total = (compute.sum(lengths).as_py() or 0) + BYTES_OF_ID * len(cells)
    if (compute.max(lengths).as_py() or 0) > MAX_ID_BYTES or total > MAX_IDS_BYTES:
        limits = f"at most {MAX_ID_BYTES} bytes each and {MAX_IDS_BYTES >> 20} MiB in all"
        advice = "leave the column out (--drop-non-numeric), or write the table without its index"
        raise UnreadableError(f"column {name}: ids take {limits}: {advice}")


def are_ids(cells: Any, options: TableOptions) -> bool:
    """Return whether a column of text identifies the rows: each has another word or date. Only
    where the options neither name ids nor leave such columns out."""
    from pyarrow import compute

    if options.index or options.drop_non_numeric or len(cells) < 2:
        return False
    are_names = compute.match_substring_regex(cells.fill_null(""), NAME_OF_ROW)
    return bool(compute.all(are_names).as_py()) and len(cells.unique()) == len(cells)


def _on_one_line(cells: Any) -> Any:
    """Return ids with a blank in place of line breaks and other control characters."""
    from pyarrow import compute

    return compute.replace_substring_regex(cells, r"[\x00-\x1f\x7f]+", " ")


def is_numeric(kind: Any) -> bool:
    """Return whether values of an Arrow type are numbers. `null` has nothing but missing values."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return is_numeric(kind.value_type)
    tests = (
        *(types.is_integer, types.is_floating, types.is_boolean, types.is_decimal),
        types.is_null,
    )
    return any(test(kind) for test in tests)


def refuse_duplicates(names: Sequence[str]) -> None:
    """Raise UnreadableError if columns have the same name: one would be read for the other."""
    seen: set[str] = set()
    twice = dict.fromkeys(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    if twice:
        shown = ", ".join(repr(name) for name in [*twice][:MAX_NAMED])
        raise UnreadableError(f"several columns have the same name: {shown}; rename them")


def existing_columns(names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return these names. Raises UnreadableError if the table has no such column."""
    if missing := [name for name in names if name not in columns]:
        have = ", ".join(columns[:MAX_NAMED]) + (", …" if len(columns) > MAX_NAMED else "")
        raise UnreadableError(f"it has no column {missing[0]}; it has {have}")
    return [*names]


def add_numbers(columns: Columns, name: str, cells: Any, written: Any | None = None) -> None:
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


def add_nameless(columns: Columns, name: str, cells: Any, is_index: bool) -> None:
    """Leave out a column without a name if it is empty. Make it the ids of the rows if it is where
    an index of pandas is, and is text or distinct whole numbers as such an index. Raises
    UnreadableError for any other."""
    values = columns.values.get(name)
    if values is not None and np.isnan(values).all():
        del columns.values[name]
        columns.empty[name] = "it has no name and no value"
        return
    if columns.header is False:  # no column has a name
        return
    is_whole = values is None or bool((values == np.round(values)).all())
    is_level = name.startswith("__index_level_")  # a level of several, whose values recur
    is_distinct = values is None or len(cells.unique()) == len(cells)
    if not is_level and not (is_index and is_whole and is_distinct):
        advice = f"name it, make it an id by --index '{name}'"
        if columns.header is not None:
            advice += ", or give --no-header if the first line has data"
        raise UnreadableError(f"{name} has no name: {advice}")
    columns.values.pop(name, None)
    columns.not_numbers.pop(name, None)
    columns.ids[name if INDEX in columns.ids else INDEX] = cells
