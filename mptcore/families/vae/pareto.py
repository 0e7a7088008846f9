"""Pareto's k̂ of importance weights, for many columns at once (Vehtari et al. 2024)."""

import math

import torch
from torch import Tensor

from mptcore.specs.compute import GPU_BATCH_BYTES

MIN_DRAWS = 25
"""Minimum number of draws with a tail to fit."""
EQUAL = 1e-6
"""Range of log weights below which a column has no tail."""
PRIOR_SCALE, PRIOR_DRAWS = 3, 10
"""Prior scale of the fit, and the number of draws that its prior of k = 0.5 is worth."""


def khats(log_weights: Tensor) -> Tensor:
    """Return k̂ of each column (draws, ...): (...), float64. It is 0 for a column without a tail,
    and infinite for a column with a value that is not finite."""
    columns = log_weights.double().flatten(1)  # (draws, n)
    found = torch.zeros_like(columns[0])
    draws = len(columns)
    if draws >= MIN_DRAWS:
        tail = math.floor(min(draws / 5, 3 * math.sqrt(draws)))
        top = (columns - columns.amax(0)).topk(tail + 1, 0).values.flip(0)  # (tail + 1, n)
        finite = columns.isfinite().all(0)
        uneven = finite & (columns.amax(0) - columns.amin(0) > EQUAL)
        chosen = top[:, uneven].clamp(min=math.log(torch.finfo(top.dtype).tiny))
        excesses = chosen[1:].exp() - chosen[0].exp()
        found[uneven] = torch.where(excesses[-1] > 0, _shape(excesses), 0)
        found[~finite] = math.inf
    return found.view(log_weights.shape[1:])


def _shape(excesses: Tensor) -> Tensor:
    """Return the shapes (n,) of generalised Pareto distributions of ascending excesses (tail, n)
    (Zhang & Stephens 2009, with the prior of Vehtari et al. 2024, App. C)."""
    tail = len(excesses)
    points = 30 + math.isqrt(tail)
    ranks = torch.arange(points, dtype=excesses.dtype, device=excesses.device) + 0.5
    quartile, largest = excesses[int(tail / 4 + 0.5) - 1], excesses[-1]
    rates = (1 - (points / ranks).sqrt())[:, None] / (PRIOR_SCALE * quartile) + 1 / largest
    if excesses.is_cuda:  # a launch costs more than the memory
        at_once = max(1, GPU_BATCH_BYTES // (4 * excesses.nbytes))
        parts = torch.split(rates[:, None], at_once)
        shapes = torch.cat([torch.log1p(-some * excesses).mean(1) for some in parts])
    else:
        shapes = torch.stack([torch.log1p(-rate * excesses).mean(0) for rate in rates])
    log_likelihood = tail * ((-rates / shapes).log() - shapes - 1)
    rate = (rates * log_likelihood.softmax(0)).sum(0)
    shape = torch.log1p(-rate * excesses).mean(0)
    return (tail * shape + PRIOR_DRAWS / 2) / (tail + PRIOR_DRAWS)
