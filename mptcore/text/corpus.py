"""Texts as sequences of tokens."""

import importlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

import torch
from torch import Tensor

from mptcore.data.upload import UnreadableError, stored_file
from mptcore.records import RunError
from mptcore.specs import GlueText, PlainText, TextSource
from mptcore.streams import stream
from mptcore.text.checkpoints import Tokenizer

TEXT_FORMATS = ("txt", "jsonl", "parquet")
BATCH = 10_000
GLUE_HUB = "nyu-mll/glue"
NOT_TEXT = ("label", "idx")
"""Columns of GLUE that are no text; the one or two others are."""

_Tokens = tuple[list[int], list[int], list[bool]]
"""Ids, types, maskable."""

Rows = Sequence[tuple[str, ...]]
"""Texts: single, or in pairs."""


@dataclass(frozen=True)
class Corpus:
    """N sequences, one after the other. `maskable` leaves special tokens out; `left_out` counts the
    texts with fewer than two tokens that could be masked."""

    ids: Tensor  # (T,) int64
    types: Tensor  # (T,) int64, which of a pair of texts a token belongs to
    maskable: Tensor  # (T,) bool
    offsets: Tensor  # (N + 1,)
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sequence, special ones included, (N,)."""
        return self.offsets.diff()

    @property
    def sizes(self) -> Tensor:
        """D: the tokens of each sequence that can be masked, (N,)."""
        ends = torch.cat([torch.zeros(1, dtype=torch.long), self.maskable.long().cumsum(0)])
        return ends[self.offsets].diff()

    def subset(self, chosen: Tensor) -> "Corpus":
        """The chosen sequences, in that order."""
        lengths = self.lengths[chosen]
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        places = torch.repeat_interleave(self.offsets[chosen] - offsets[:-1], lengths)
        places += torch.arange(int(offsets[-1]))
        parts = (self.ids[places], self.types[places], self.maskable[places])
        return Corpus(*parts, offsets, self.left_out)

    def rows(self, sequences: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, types and maskable of some sequences, (n, length) each, padded at the end."""
        places = self.offsets[sequences][:, None] + torch.arange(length)
        present = torch.arange(length) < self.lengths[sequences][:, None]
        places = places.clamp(max=len(self.ids) - 1)
        ids, types = self.ids[places], self.types[places]
        return ids, types, self.maskable[places] & present


def read(spec: TextSource, tokenizer: Tokenizer, positions: int) -> Corpus:
    """The sequences of a source, of at most `positions` tokens. Raises RunError."""
    rows = _texts(spec)
    if spec.n is not None and spec.n < len(rows):
        chosen = torch.randperm(len(rows), generator=stream(spec.seed, "texts"))[: spec.n]
        rows = [rows[i] for i in chosen.sort().values.tolist()]
    length = min(spec.max_length, positions)
    pack = _sentences if spec.packing == "sentences" else _blocks
    sequences = pack(rows, tokenizer, length)
    kept = [one for one in sequences if sum(one[2]) >= 2]
    if not kept:
        detail = f"none of the {len(sequences)} sequences has two tokens that can be masked"
        raise RunError("invalid", f"the text gives nothing to score: {detail}")
    offsets = torch.tensor([0] + [len(ids) for ids, _, _ in kept]).cumsum(0)
    columns = [torch.tensor([x for one in kept for x in one[i]]) for i in range(3)]
    return Corpus(columns[0], columns[1], columns[2].bool(), offsets, len(sequences) - len(kept))


def _sentences(rows: Rows, tokenizer: Tokenizer, length: int) -> list[_Tokens]:
    special = _special(tokenizer)
    sequences = []
    for first in range(0, len(rows), BATCH):
        columns = [list(column) for column in zip(*rows[first : first + BATCH], strict=True)]
        found = tokenizer(*columns, truncation=True, max_length=length)
        for ids, types in zip(found["input_ids"], _types(found), strict=True):
            sequences.append((ids, types, [i not in special for i in ids]))
    return sequences


def _types(found: Any) -> list[list[int]]:
    if "token_type_ids" in found:
        types: list[list[int]] = found["token_type_ids"]
        return types
    return [[0] * len(ids) for ids in found["input_ids"]]


def _blocks(rows: Rows, tokenizer: Tokenizer, length: int) -> list[_Tokens]:
    special = _special(tokenizer)
    begin, end = _frame(tokenizer)
    separator = end[-1:] or begin[:1]
    stream_: list[int] = []
    for first in range(0, len(rows), BATCH):
        texts = [" ".join(row) for row in rows[first : first + BATCH]]
        for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
            stream_ += ids + separator
    inner = length - len(begin) - len(end)
    sequences = []
    for start in range(0, len(stream_), inner):
        ids = begin + stream_[start : start + inner] + end
        sequences.append((ids, [0] * len(ids), [i not in special for i in ids]))
    return sequences


def _frame(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that stand before and after a text."""
    framed = tokenizer("a")["input_ids"]
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    for start in range(len(framed) - len(inner) + 1):
        if framed[start : start + len(inner)] == inner:
            return framed[:start], framed[start + len(inner) :]
    return [], []


def _special(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that are never masked and never counted. The unknown token stands for text."""
    return frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def _texts(spec: TextSource) -> Rows:
    match spec:
        case GlueText():
            return _glue(spec)
        case PlainText(lines=lines) if lines is not None:
            return [(line,) for line in lines]
        case PlainText(file=name) if name is not None:
            return _lines(_data_folder() / "text" / name, f"the text {name}")
        case PlainText():
            return uploaded(str(spec.dataset), spec.column)
        case _:
            assert_never(spec)


def _data_folder() -> Path:
    folder = os.environ.get("MPT_DATA_DIR")
    if not folder:
        raise RunError("invalid", "MPT_DATA_DIR, the folder that holds texts, is not set")
    return Path(folder)


def _lines(path: Path, what: str) -> Rows:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunError("invalid", f"{what} is not there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError("invalid", f"{what} is not UTF-8 text: {error}") from error
    return _some([(line,) for line in text.splitlines() if line.strip()], what)


def _some(rows: Rows, what: str) -> Rows:
    if not rows:
        raise RunError("invalid", f"{what} has no text in it")
    return rows


def uploaded(dataset: str, column: str) -> Rows:
    """The texts of an upload: lines of .txt, or a column of .jsonl or .parquet. Raises RunError."""
    what = f"the upload {dataset}"
    try:
        path = stored_file(dataset, TEXT_FORMATS)
    except UnreadableError as error:
        raise RunError("invalid", f"{what} cannot be used: {error}") from error
    return table(path, (column,), what)


def table(path: Path, columns: Sequence[str] | None, what: str) -> Rows:
    """The texts of a file; by default those of all its columns that hold text. Raises RunError."""
    match path.suffix:
        case ".txt":
            return _lines(path, what)
        case ".jsonl":
            rows = _json_rows(path, what)
        case ".parquet":
            parquet: Any = importlib.import_module("pyarrow.parquet")
            rows = parquet.read_table(path).to_pylist()
        case suffix:
            raise RunError("invalid", f"{what} is no text: .txt, .jsonl or .parquet, not {suffix}")
    rows = [row for row in rows if isinstance(row, dict)]
    found = sorted({name for row in rows for name, value in row.items() if isinstance(value, str)})
    wanted = columns or [name for name in (rows[0] if rows else ()) if name in found]
    if missing := [name for name in wanted if name not in found]:
        have = ", ".join(found) or "none"
        raise RunError("invalid", f"{what} has no column of text {missing[0]}; it has {have}")
    texts = [tuple(row.get(name) for name in wanted) for row in rows]
    return _some([row for row in texts if all(isinstance(x, str) and x for x in row)], what)


def _json_rows(path: Path, what: str) -> list[Any]:
    rows = []
    for number, (line,) in enumerate(_lines(path, what), 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise RunError("invalid", f"{what}: line {number} is not JSON: {error}") from error
    return rows


def _glue(spec: GlueText) -> Rows:
    """A local copy first, then the hub."""
    folder = os.environ.get("MPT_DATA_DIR")
    what = f"glue/{spec.subset}/{spec.split}"
    for suffix in ("parquet", "jsonl", "txt"):
        local = Path(folder, "glue", spec.subset, f"{spec.split}.{suffix}") if folder else None
        if local is not None and local.is_file():
            return table(local, None, what)
    datasets: Any = importlib.import_module("datasets")
    try:
        found = datasets.load_dataset(GLUE_HUB, spec.subset, split=spec.split)
    except Exception as error:  # whatever lies below: the hub, the network, the cache
        reason = " ".join(str(error).split())[:300]
        cure = f"put {spec.split}.parquet into MPT_DATA_DIR/glue/{spec.subset}, or let this machine"
        raise RunError("invalid", f"{what} is not here: {cure} reach the hub ({reason})") from error
    names = [name for name in found.column_names if name not in NOT_TEXT]
    return [tuple(row[name] for name in names) for row in found]
