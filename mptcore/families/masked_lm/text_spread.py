"""The variance of a small sample, with the help of many other samples (Smyth 2004)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]

SMALLEST = 1e-8
"""Variances smaller than this multiple of their median count as that, because a variance of 0 has
no logarithm."""
MOST_FREEDOM = 1e4
"""Degrees of freedom of a variance that all samples share."""


@dataclass(frozen=True)
class Spread:
    """A variance of samples that is known before they are drawn, and the degrees of freedom for
    which it counts."""

    variance: float
    freedom: float

    @classmethod
    def of(cls, samples: Sequence[Numbers]) -> "Spread":
        """Estimate what samples of one size have in common. Their true variances are taken to
        follow a scaled inverse χ² distribution, whose two parameters follow from the mean and the
        variance of the logarithms of the sample variances (Smyth 2004, Sec. 6.2)."""
        finite = [one for one in samples if np.isfinite(one).all()]
        found = np.array([float(one.var(ddof=1)) for one in finite])
        if len(found) < 2 or np.median(found) == 0:
            return UNKNOWN
        half = (len(finite[0]) - 1) / 2
        logs = np.log(np.maximum(found, SMALLEST * np.median(found)))
        logs = logs - digamma(half) + math.log(half)
        freedom = _freedom(float(logs.var(ddof=1) - polygamma(1, half)))
        shift = digamma(freedom / 2) - math.log(freedom / 2)
        return cls(math.exp(float(logs.mean() + shift)), freedom)

    def variance_of(self, sample: Numbers) -> tuple[float, float]:
        """Return the variance behind a sample, and its degrees of freedom."""
        own = len(sample) - 1
        squares = own * float(sample.var(ddof=1)) + self.freedom * self.variance
        return squares / (own + self.freedom), own + self.freedom


UNKNOWN = Spread(0.0, 0.0)


def _freedom(excess: float) -> float:
    """Return the degrees of freedom whose logarithm of χ² has this variance, ψ′(freedom / 2)."""
    if excess <= polygamma(1, MOST_FREEDOM / 2):
        return MOST_FREEDOM
    return 2 * float(brentq(lambda half: polygamma(1, half) - excess, 1e-6, MOST_FREEDOM / 2))
