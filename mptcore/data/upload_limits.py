"""Limits of an uploaded file, checked against the sizes that it declares, before it is decoded.

A few kilobytes can declare billions of cells: a column of one repeated value compresses to nothing.
"""

import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from mptcore.specs.data.reading import DEFAULTS, TableOptions

MAX_CELLS = 200_000_000
"""Rows × columns of all arrays of a file."""
MAX_BYTES = 4 * 2**30
"""Maximum size of the decoded cells, and of a Parquet file's decompressed pages."""
MAX_COLUMNS = 20_000
MAX_TEXT_ROWS = 10_000_000
MAX_ARRAYS = 1_000
MAX_ROW_GROUPS = 100_000
MAX_FOOTER_BYTES = 16 * 2**20
PIECE_BYTES = 2**20


class TooLargeError(ValueError):
    """A file declares more than the limits allow. The message names the limit."""


@dataclass
class Declared:
    """Contents that a file declares, in total."""

    cells: int = 0
    bytes: int = 0

    def add(self, cells: int, size: int, max_cells: int) -> None:
        """Count an array or table. Raises TooLargeError."""
        self.cells += cells
        self.bytes += size
        _require("cells", self.cells, max_cells)
        _require("bytes of cells", self.bytes, MAX_BYTES)


def excess(path: Path, max_cells: int = MAX_CELLS, options: TableOptions = DEFAULTS) -> str | None:
    """Return the limit that a file exceeds by its declared sizes, or None. For a malformed file,
    raises the error of numpy, zipfile or Arrow."""
    try:
        match path.suffix:
            case ".npy":
                with path.open("rb") as file:
                    Declared().add(*_array(file), max_cells)
            case ".npz":
                _check_archive(path, max_cells)
            case ".parquet":
                _check_parquet(path, max_cells)
            case ".csv" | ".tsv":
                _check_separated(path, max_cells, options.separator(path.suffix[1:]))
    except TooLargeError as error:
        return str(error)
    return None


def _check_archive(path: Path, max_cells: int) -> None:
    declared = Declared()
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _require("arrays", len(members), MAX_ARRAYS)
        for member in members:
            with archive.open(member) as file:
                declared.add(*_array(file), max_cells)


def _array(file: IO[bytes]) -> tuple[int, int]:
    """Return the cells and bytes that the header of an array declares."""
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
        (3, 0): np.lib.format.read_array_header_2_0,
    }[np.lib.format.read_magic(file)]
    shape, _, dtype = read(file)
    cells = math.prod(shape)
    return cells, cells * dtype.itemsize


def _check_parquet(path: Path, max_cells: int) -> None:
    """Check the footer, whose numbers the decoder follows."""
    with path.open("rb") as file:
        file.seek(-8, 2)
        size, ending = int.from_bytes(file.read(4), "little"), file.read()
    if ending == b"PAR1":  # the reader refuses others
        _require("bytes of footer", size, MAX_FOOTER_BYTES)
    from pyarrow import parquet  # which takes a sixth of a second to import

    found = parquet.read_metadata(path)
    columns, rows = found.num_columns, found.num_rows
    _require("columns", columns, MAX_COLUMNS)
    _require("row groups", found.num_row_groups, MAX_ROW_GROUPS)
    if any(found.schema.column(i).physical_type == "BYTE_ARRAY" for i in range(columns)):
        _require("rows of text", rows, MAX_TEXT_ROWS)
    chunks = [found.row_group(i) for i in range(found.num_row_groups)]
    _require("rows in its row groups", sum(chunk.num_rows for chunk in chunks), rows)
    cells, pages = 0, 0
    for chunk in chunks:
        for column in map(chunk.column, range(columns)):
            cells += column.num_values
            pages += column.total_uncompressed_size
    Declared().add(max(cells, rows * columns), 8 * max(cells, rows * columns), max_cells)
    _require("bytes of decompressed pages", pages, MAX_BYTES)


def _check_separated(path: Path, max_cells: int, separator: str) -> None:
    """Count separators and line breaks while reading."""
    cells = 0
    for piece in _pieces(path):
        cells += piece.count(separator.encode()) + piece.count(b"\n")
        _require("cells", cells, max_cells)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def _require(what: str, found: int, most: int) -> None:
    if found > most or found < 0:
        raise TooLargeError(f"it declares {found} {what}; at most {most} are read")
