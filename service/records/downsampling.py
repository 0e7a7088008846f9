"""Downsample long series without losing spikes and gaps."""

import numpy as np
from numpy.typing import NDArray
from tsdownsample import MinMaxDownsampler

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

_MIN_MAX = MinMaxDownsampler()  # type: ignore[no-untyped-call]


def downsampled(values: Floats, most: int) -> Places:
    """Return at most `most` (at least 2) indices of values, in order and deterministic: the first,
    the last and, from equal stretches between them, the minimum, the maximum and the first missing
    value (NaN). No spike or gap is lost."""
    if len(values) <= most:
        return np.arange(len(values))
    stretches = (most - 2) // 2
    places = _striking(values, stretches)
    while (excess := len(places) - most) > 0:  # where values are missing, a stretch has three
        stretches = max(stretches - (excess + 1) // 2, (most - 2) // 3)
        places = _striking(values, stretches)
    return places


def _striking(values: Floats, stretches: int) -> Places:
    inner = values[1:-1]
    missing = np.isnan(inner)
    ends = np.array([0, len(values) - 1])
    if stretches == 0:
        return ends
    found = [ends, _extremes(inner, stretches)]
    if missing.any():
        first = _extremes(missing.astype(float), stretches)
        found.append(first[missing[first - 1]])
    return np.unique(np.concatenate(found))


def _extremes(inner: Floats, stretches: int) -> Places:
    """Return the extremes of each stretch. Indices are counted from the first value, which `inner`
    lacks."""
    if len(inner) <= 2 * stretches:
        return np.arange(1, len(inner) + 1)
    # The library rounds the end of its last stretch, and may leave the last value out.
    repeated = np.append(inner, inner[-1])
    places: Places = _MIN_MAX.downsample(repeated, n_out=2 * stretches).astype(np.intp)
    return np.minimum(places, len(inner) - 1) + 1


def points_per_series(totals: list[int], most: int) -> list[int]:
    """Return how many points each series may show, so that all together show at most `most`: short
    series completely, long ones the same number each, at least 2."""
    left, shown = most, dict.fromkeys(range(len(totals)), 0)
    for rank, place in enumerate(sorted(shown, key=lambda i: totals[i])):
        shown[place] = min(totals[place], left // (len(totals) - rank))
        left -= shown[place]
    return [shown[place] for place in range(len(totals))]
