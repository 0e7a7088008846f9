"""Files of uploads: find them, check their beginnings, and name what is wrong with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mptcore.runtime.inputs import InputError, input_file

Floats = np.ndarray[Any, np.dtype[np.float64]]
FORMATS = ("npy", "npz", "csv", "tsv", "parquet")
BEGINNINGS = {"npy": b"\x93NUMPY", "npz": b"PK", "parquet": b"PAR1"}
WRITERS = {"npy": "numpy.save", "npz": "numpy.savez", "parquet": "DataFrame.to_parquet"}
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}
"""First bytes of compressed files."""
MISSING = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"N/A", "NA", "NULL", "NaN", "n/a", "nan", "null", "NAN", "Nan"}
)
"""Cells of text files that mark a missing value: Arrow's, and those that it reads as NaN."""


class UnreadableError(ValueError):
    """A file has the wrong format or contains values that are not numbers. The message says
    which."""


def stored_file(dataset: str, formats: Sequence[str]) -> Path:
    """Return the file of an upload. Raises UnreadableError if it has none of these formats."""
    try:
        path = input_file(dataset, f"datasets/{dataset}/data.*")
    except InputError as error:
        raise UnreadableError(str(error)) from error
    if path.suffix.lstrip(".") not in formats:
        allowed = ", ".join(formats)
        raise UnreadableError(f"it is {path.suffix.lstrip('.')}, not one of {allowed}")
    return path


def error_text(path: Path, error: Exception) -> str:
    """Return an error's message about a file as one line, without its path."""
    return " ".join(str(error).replace(str(path), path.name).split())[:200]


def check_beginning(path: Path, suffix: str) -> None:
    """Raises UnreadableError if the content of a file does not match its extension."""
    with path.open("rb") as file:
        begin = file.read(16)
    kind = next((kind for kind, first in BEGINNINGS.items() if begin.startswith(first)), "csv")
    for first, name in COMPRESSED.items():
        if begin.startswith(first):
            raise UnreadableError(f"it is compressed ({name}): upload the decompressed file")
    if begin.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UnreadableError("it is UTF-16 text: save it as UTF-8")
    if kind == suffix or (kind == "csv" and suffix in ("csv", "tsv")):
        return
    content = f"begins as .{kind} does" if kind in BEGINNINGS else f"begins with {begin!r}"
    if kind == "npz" and suffix in ("csv", "tsv"):
        content = "is a zip archive, as .npz and .xlsx are: save a spreadsheet as .csv"
    advice = f"; {WRITERS[suffix]} writes one" if suffix in WRITERS else ""
    raise UnreadableError(f"not a .{suffix} file: it {content if begin else 'is empty'}{advice}")
