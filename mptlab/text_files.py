"""Files of texts on this machine: lines, tables, and sequences in FASTA."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

FASTA_SUFFIXES = (".fasta", ".fa", ".faa", ".fna", ".ffn", ".fas")
STOP = "*"
"""Letter that may end a protein. It is no amino acid."""


def read_text(file: Path) -> str:
    """Return the text of a file without its byte order mark. Raises ValueError."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: {error}") from None


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file that are not blank. Raises ValueError."""
    lines = [line for _, line in read_numbered_lines(file)]
    if not lines:
        raise ValueError(f"{file} has no text in it")
    return lines


def read_numbered_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers, without the byte order marks that
    joined files leave. Raises ValueError."""
    for number, line in enumerate(read_text(file).split("\n"), 1):  # U+2028 may be in a text
        if (text := line.removeprefix("\ufeff")).strip():
            yield number, text


@dataclass(frozen=True)
class Fasta:
    """Sequences of a FASTA file, with their headers, and what was changed in them."""

    headers: Sequence[str]
    sequences: Sequence[str]
    notes: Sequence[str]


def read_fasta(file: Path) -> Fasta:
    """Return the sequences of a FASTA file in capital letters; a final * is left out. The first
    sequence may lack a header. Raises ValueError for anything else than letters."""
    headers: list[str] = []
    sequences: list[str] = []
    stops: dict[int, int] = {}
    lower = 0
    for number, line in read_numbered_lines(file):
        is_header = line.startswith(">")
        if is_header or not sequences:
            headers.append(line[1:].strip() if is_header else "")
            sequences.append("")
        if is_header:
            continue
        if len(sequences) in stops:
            _refuse_letter(file, stops[len(sequences)], STOP)
        letters = line.strip().removesuffix(STOP)
        if other := re.search("[^A-Za-z]", letters):
            _refuse_letter(file, number, other[0])
        if line.strip() != letters:
            stops[len(sequences)] = number
        lower += letters != letters.upper()
        sequences[-1] += letters.upper()
    notes = []
    if stops:
        counts = f"{len(stops)} of {len(sequences)} sequences"
        notes.append(f"{file}: {counts} end in *, which is no amino acid: it is left out")
    if lower:
        notes.append(f"{file}: lower-case letters in {lower} lines are read as capitals")
    return Fasta(headers, sequences, notes)


def _refuse_letter(file: Path, line: int, letter: str) -> NoReturn:
    detail = "a sequence has letters only, and * only at its end"
    raise ValueError(f"{file}, line {line} has {letter!r}: {detail}")
