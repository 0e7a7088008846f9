"""Find rows that are exact copies of others."""

from typing import Any

import numpy as np

ROWS_AT_ONCE = 4096
"""Rows that are hashed together, so that they stay in a processor's cache."""


def first_copies(x: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:  # (N, D) to (N,)
    """Return for each row the place of the first row that equals it; missing values are equal."""
    weights = np.random.default_rng(0).integers(0, 2**63, (2, x.shape[1]), dtype=np.uint64) * 2 + 1
    hashes = np.empty(len(x), np.uint64)
    for start in range(0, len(x), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        mixed = _bits(x[part])
        mixed = (mixed ^ (mixed >> np.uint64(29))) * weights[0]
        mixed ^= mixed >> np.uint64(32)
        hashes[part] = (mixed * weights[1]).sum(1, dtype=np.uint64)
    _, first, of_row = np.unique(hashes, return_index=True, return_inverse=True)
    places: np.ndarray[Any, np.dtype[np.int64]] = first[of_row]
    copies = np.flatnonzero(places != np.arange(len(x)))
    for start in range(0, len(copies), ROWS_AT_ONCE):
        rows = copies[start : start + ROWS_AT_ONCE]
        differ = rows[(_bits(x[rows]) != _bits(x[places[rows]])).any(1)]  # equal hashes by chance
        places[differ] = differ
    return places


def _bits(x: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the bits of numbers in float64, the same for -0 and 0, and for all missing values."""
    return np.where(np.isnan(x), np.nan, x + 0.0).view(np.uint64)


def repeated_rows(x: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the places of the rows (N, D) that are exact copies of earlier ones."""
    return np.flatnonzero(first_copies(x) != np.arange(len(x)))
