"""Student's t distribution, using only the standard library."""

import math
from functools import cache
from statistics import NormalDist

STEPS = 200
"""Steps of Simpson's rule, which has an error below 1e-6."""


def cdf(t: float, degrees: float) -> float:
    """Return the probability below t. Infinite degrees of freedom are the normal distribution."""
    if math.isinf(degrees):
        return NormalDist().cdf(t)
    end = math.atan(abs(t) / math.sqrt(degrees))  # t = √ν tan θ, whose density is ∝ cos(θ)^(ν − 1)
    step = end / STEPS
    weights = (4 if i % 2 else 2 for i in range(1, STEPS))
    inner = sum(w * math.cos(i * step) ** (degrees - 1) for i, w in enumerate(weights, 1))
    area = step / 3 * (1 + inner + math.cos(end) ** (degrees - 1))
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    half = area * math.exp(scale) / math.sqrt(math.pi)
    return 0.5 + math.copysign(half, t)


@cache
def quantile(probability: float, degrees: float) -> float:
    """Return the t below which `probability` lies, 0.5 or more, by bisection."""
    if math.isinf(degrees):
        return NormalDist().inv_cdf(probability)
    low, high = 0.0, 1000.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle, degrees) < probability else (low, middle)
    return low
