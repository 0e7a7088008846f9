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

from mptcore.specs.vectors import DEFAULT_TABLE_OPTIONS, TableOptions

MAX_CELLS = 200_000_000
"""Rows × columns of all arrays of a file."""
MIN_DECODED_BYTES, MAX_DECODED_BYTES = 384 * 2**20, 3 * 2**29
"""Decoded size that every file may have, and that no file exceeds."""
CELL_BYTES = np.dtype(np.float64).itemsize
TEXT_BYTES = 96
"""Memory of a cell of text besides its characters, in Python."""
MAX_COLUMNS = 20_000
MAX_ARRAYS = 1_000
MAX_ROW_GROUPS = 100_000
MAX_FOOTER_BYTES = 16 * 2**20
PIECE_BYTES = 2**20


class TooLargeError(ValueError):
    """A file declares more than the limits allow. The message names the limit."""


def max_decoded_bytes(path: Path) -> int:
    """Return the maximum decoded size of a file. A file of numbers that is not compressed has at
    least a byte for each cell, and so is never larger, up to MAX_DECODED_BYTES."""
    return min(MAX_DECODED_BYTES, max(MIN_DECODED_BYTES, CELL_BYTES * path.stat().st_size))


def memory_bytes(path: Path) -> int:
    """Return the memory in which a file must be read, 1 GiB to 4 GiB: enough for two copies of its
    cells and what the readers need besides."""
    return max_decoded_bytes(path) * 8 // 3


@dataclass
class Declared:
    """Contents that a file declares, in total."""

    path: Path
    max_cells: int
    cells: int = 0
    bytes: int = 0

    def add(self, cells: int, size: int) -> None:
        """Count an array or table. Raises TooLargeError."""
        self.cells += cells
        self.bytes += size
        _require("cells", self.cells, self.max_cells)
        max_bytes = max_decoded_bytes(self.path)
        if self.bytes > max_bytes:
            declared = f"it declares {self.cells} cells, {self.bytes} bytes in memory"
            detail = f"at most {max_bytes} are read from a file of {self.path.stat().st_size} bytes"
            raise TooLargeError(f"{declared}; {detail}, more from one that is not compressed")


def excess(
    path: Path, max_cells: int = MAX_CELLS, options: TableOptions = DEFAULT_TABLE_OPTIONS
) -> str | None:
    """Return the limit that a file exceeds by its declared sizes, or None. For a malformed file,
    raises the error of numpy, zipfile or Arrow."""
    try:
        match path.suffix:
            case ".npy":
                with path.open("rb") as file:
                    Declared(path, max_cells).add(*_array(file))
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
    declared = Declared(path, max_cells)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _require("arrays", len(members), MAX_ARRAYS)
        for member in members:
            with archive.open(member) as file:
                declared.add(*_array(file))


def _array(file: IO[bytes]) -> tuple[int, int]:
    """Return the cells that the header of an array declares, and their bytes in memory."""
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
        (3, 0): np.lib.format.read_array_header_2_0,
    }[np.lib.format.read_magic(file)]
    shape, _, dtype = read(file)
    cells = math.prod(shape)
    return cells, cells * max(dtype.itemsize, CELL_BYTES)


def _check_parquet(path: Path, max_cells: int) -> None:
    """Check the footer, whose numbers the decoder follows."""
    with path.open("rb") as file:
        file.seek(-8, 2)
        size, ending = int.from_bytes(file.read(4), "little"), file.read()
    if ending == b"PAR1":  # the reader refuses others
        _require("bytes of footer", size, MAX_FOOTER_BYTES)
    from pyarrow import parquet  # which takes a sixth of a second to import

    metadata = parquet.read_metadata(path)
    columns, rows = metadata.num_columns, metadata.num_rows
    _require("columns", columns, MAX_COLUMNS)
    _require("row groups", metadata.num_row_groups, MAX_ROW_GROUPS)
    chunks = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    _require("rows in its row groups", sum(chunk.num_rows for chunk in chunks), rows)
    declared = Declared(path, max_cells)
    for c in range(columns):
        values = sum(chunk.column(c).num_values for chunk in chunks)
        pages = sum(max(0, chunk.column(c).total_uncompressed_size) for chunk in chunks)
        is_text = metadata.schema.column(c).physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
        cells = max(rows, values)
        declared.add(cells, cells * (TEXT_BYTES if is_text else CELL_BYTES) + pages * is_text)


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


def _require(what: str, count: int, maximum: int) -> None:
    if count > maximum or count < 0:
        raise TooLargeError(f"it declares {count} {what}; at most {maximum} are read")
