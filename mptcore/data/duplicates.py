"""Find rows that are exact copies of others. Missing values are equal to each other, -0 to 0."""

from typing import Any

import numpy as np

from mptcore.data.files import Floats

RowNumbers = np.ndarray[Any, np.dtype[np.int64]]
Bits = np.ndarray[Any, np.dtype[np.uint64]]
NUMBERS_AT_ONCE = 2**18
"""Numbers that are hashed together, so that they stay in a processor's cache."""


def repeated_rows(x: Floats) -> RowNumbers:
    """Return the numbers of the rows (N, D) that are exact copies of earlier ones."""
    _, first, of_row = np.unique(_hashes(x), return_index=True, return_inverse=True)
    rows = np.flatnonzero(first[of_row] != np.arange(len(x)))
    copies: RowNumbers = rows[_are_equal(x[rows], x[first[of_row[rows]]])]
    return copies


def copied_rows(x: Floats, others: Floats) -> RowNumbers:
    """Return the numbers of the rows (N, D) that are exact copies of a row of others (M, D)."""
    other_hashes, first = np.unique(_hashes(others), return_index=True)
    hashes = _hashes(x)
    indices = np.searchsorted(other_hashes, hashes).clip(max=len(other_hashes) - 1)
    rows = np.flatnonzero(other_hashes[indices] == hashes)
    copies: RowNumbers = rows[_are_equal(x[rows], others[first[indices[rows]]])]
    return copies


def _hashes(x: Floats) -> Bits:  # (N, D) to (N,)
    """Return a hash of each row."""
    weights = np.random.default_rng(0).integers(0, 2**63, (2, x.shape[1]), dtype=np.uint64) * 2 + 1
    hashes = np.empty(len(x), np.uint64)
    size = max(1, NUMBERS_AT_ONCE // x.shape[1])
    for start in range(0, len(x), size):
        rows = x[start : start + size]
        bits = np.where(np.isnan(rows), np.nan, rows + 0.0).view(np.uint64)
        mixed = (bits ^ (bits >> np.uint64(29))) * weights[0]
        mixed ^= mixed >> np.uint64(32)
        hashes[start : start + size] = (mixed * weights[1]).sum(1, dtype=np.uint64)
    return hashes


def _are_equal(x: Floats, y: Floats) -> np.ndarray[Any, np.dtype[np.bool_]]:  # (N, D) to (N,)
    equal: np.ndarray[Any, np.dtype[np.bool_]] = ((x == y) | (np.isnan(x) & np.isnan(y))).all(1)
    return equal
