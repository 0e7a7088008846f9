"""Pages of a table of texts: a file with a line of JSON for each text, never loaded as a whole.

An index keeps the numbers of all rows and the place of each line, so a page reads only its own
lines. Indexes of the files used last stay in memory.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import orjson

from mptcore.specs import Problem
from service.refusals import invalid

FILE = "texts.jsonl"
MAX_ROWS = 200_000
"""Maximum number of rows of a file that is indexed."""
MAX_FILE_BYTES = 2**26
"""Maximum bytes of a file that is indexed: reading it takes about a second."""
MAX_PAGE_BYTES = 8 * 2**20
"""Maximum number of bytes of the lines of a page. At least one line is returned."""
SMALL_BYTES = 2**20
"""Bytes of a file up to which its index is built beside others: it takes a few hundredths of a
second."""
MAX_KEPT_BYTES, MAX_KEPT_SMALL_BYTES = 2**28, 2**25
"""Maximum bytes of the indexes that stay in memory."""
MAX_KEPT = 1000
"""Maximum number of files with an index that stays in memory, or with a reason why they have none.
"""
TOKENS, PER_TOKEN = "tokens", "_per_token"
LARGE = "by_token"
"""Column that is left out unless it is requested."""

Row = dict[str, Any]


@dataclass
class Index:
    """Places of the lines of a file, and its columns of numbers; NaN is null."""

    columns: list[str] = field(default_factory=list)
    numbers: "dict[str, array[float]]" = field(default_factory=dict)
    groups: "array[int]" = field(default_factory=lambda: array("Q"))
    """Digest of the group of each row; 0 without a group."""
    starts: "array[int]" = field(default_factory=lambda: array("q", [0]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def size(self) -> int:
        """Bytes of its numbers."""
        return 8 * (len(self.starts) + len(self) * (1 + len(self.numbers)))

    def of_group(self, group: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the rows of a group."""
        return np.flatnonzero(np.frombuffer(self.groups, np.uint64) == _digest(group))

    def add(self, line: bytes) -> None:
        """Add the next line of the file."""
        row: Row = orjson.loads(line)
        if not self.columns:
            self.columns = [*row]
        count = len(self)
        for name, value in row.items():
            if isinstance(value, int | float) and name not in self.numbers:
                self.numbers[name] = array("d", [np.nan]) * count
        for name, values in self.numbers.items():
            value = row.get(name)
            values.append(np.nan if value is None else value)
        group = row.get("group")
        self.groups.append(0 if group is None else _digest(group))
        self.starts.append(self.starts[-1] + len(line))


def _digest(group: str) -> int:
    """Return 64 bits that stand for a group. A table has at most MAX_ROWS of them."""
    found = blake2b(group.encode(), digest_size=8).digest()
    return int.from_bytes(found) or 1


@dataclass(frozen=True)
class TextsWanted:
    """Request for a page of rows."""

    order: str = "row"
    """Column of numbers, such as pll, or pll_per_token for its numbers divided by `tokens`;
    with a minus for the highest first. Rows without a number come last."""
    offset: int = 0
    limit: int = 100
    columns: Sequence[str] = ()
    """Columns; none: all without `by_token`."""
    group: str | None = None


@dataclass(frozen=True)
class TextPage:
    """Some rows of a table."""

    columns: list[str]
    items: list[Row]
    total: int
    """Number of rows that the filter leaves."""
    next_offset: int | None


class _Building:
    """An index that is built once, when it is first needed, or the reason why there is none.
    `beside` is held while it is built."""

    def __init__(self, beside: AbstractContextManager[object]) -> None:
        self._lock, self._beside = Lock(), beside
        self._found: Index | str | None = None

    def get(self, path: Path) -> Index:
        with self._lock:
            if self._found is None:
                with self._beside:
                    self._found = _built(path)
        if isinstance(self._found, str):
            detail = f"pages can be read only of {self._found}: download the artifact {FILE}"
            raise invalid([Problem("/path/experiment_id", detail)])
        return self._found

    @property
    def size(self) -> int:
        """Bytes of the index if it is built."""
        return self._found.size if isinstance(self._found, Index) else 0


class Indexes:
    """Indexes of the files used last, by path and digest, within a limit of bytes."""

    def __init__(self, max_bytes: int, beside: AbstractContextManager[object]) -> None:
        self._max_bytes, self.beside = max_bytes, beside
        self._lock = Lock()
        self._kept: OrderedDict[tuple[Path, str], _Building] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget all indexes."""
        with self._lock:
            self._kept.clear()

    def get(self, path: Path, sha256: str) -> Index:
        key = path, sha256
        with self._lock:
            building = self._kept.setdefault(key, _Building(self.beside))
            self._kept.move_to_end(key)
        try:
            return building.get(path)
        finally:
            with self._lock:
                size = sum(one.size for one in self._kept.values())
                while size > self._max_bytes or len(self._kept) > MAX_KEPT:
                    size -= self._kept.popitem(last=False)[1].size


LARGE_INDEXES = Indexes(MAX_KEPT_BYTES, Lock())  # one is built at a time
SMALL_INDEXES = Indexes(MAX_KEPT_SMALL_BYTES, nullcontext())


def index_of(path: Path, sha256: str) -> Index:
    """Return the index of a file with this digest. One index is built at a time, and each once for
    all requests that wait for it. Requests for other indexes do not wait, nor do small files.
    Raises ApiError."""
    is_small = path.stat().st_size <= SMALL_BYTES
    return (SMALL_INDEXES if is_small else LARGE_INDEXES).get(path, sha256)


def _built(path: Path) -> Index | str:
    """Return the index of a file, or the limit that the file exceeds. The rows are counted before
    any is read."""
    if path.stat().st_size > MAX_FILE_BYTES:
        return f"tables of at most {MAX_FILE_BYTES // 2**20} MiB"
    found = Index()
    with path.open("rb") as file:
        if sum(1 for _ in file) > MAX_ROWS:
            return f"tables of at most {MAX_ROWS} rows"
        file.seek(0)
        for line in file:
            found.add(line)
    return found


def page(path: Path, sha256: str, wanted: TextsWanted) -> TextPage:
    """Read a page of a file. Raises ApiError."""
    index = index_of(path, sha256)
    columns = _columns(index, wanted.columns)
    order = _ordered(index, wanted)
    found: list[Row] = []
    for row in _read(path, index, order[wanted.offset : wanted.offset + wanted.limit].tolist()):
        found.append({name: row.get(name) for name in columns})
    end = wanted.offset + len(found)
    return TextPage(columns, found, len(order), end if end < len(order) else None)


def _columns(index: Index, wanted: Sequence[str]) -> list[str]:
    if unknown := [name for name in wanted if name not in index.columns]:
        raise invalid([Problem("/query/columns", _choice(unknown[0], index.columns))])
    if len({*wanted}) < len(wanted):
        raise invalid([Problem("/query/columns", "a column may be listed once only")])
    return [*wanted] or [name for name in index.columns if name != LARGE]


def _ordered(index: Index, wanted: TextsWanted) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the wanted rows in order. Rows of equal numbers stay in the order of the table."""
    name = wanted.order.removeprefix("-")
    column = name.removesuffix(PER_TOKEN) if TOKENS in index.numbers else name
    if column not in index.numbers:
        raise invalid([Problem("/query/order", _choice(name, [*index.numbers]))])
    rows = np.arange(len(index))
    if wanted.group is not None:
        rows = index.of_group(wanted.group)
    values = np.frombuffer(index.numbers[column])[rows]
    if column != name:
        tokens = np.frombuffer(index.numbers[TOKENS])[rows]
        values = np.divide(values, tokens, where=tokens > 0, out=np.full(len(rows), np.nan))
    return rows[np.argsort(-values if wanted.order.startswith("-") else values, kind="stable")]


def _choice(name: str, known: Sequence[str]) -> str:
    return f"{name} is not one of {', '.join(known)}"


def _read(path: Path, index: Index, rows: Sequence[int]) -> Iterator[Row]:
    """Yield rows, up to MAX_PAGE_BYTES."""
    taken = 0
    with path.open("rb") as file:
        for row in rows:
            start, end = index.starts[row], index.starts[row + 1]
            taken += end - start
            if taken > MAX_PAGE_BYTES and taken > end - start:
                return
            file.seek(start)
            yield orjson.loads(file.read(end - start))
