"""Maximize a likelihood by L-BFGS-B, where EM creeps: noise variances that go to 0 or that hardly
matter."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from mptcore.families.linear_gaussian.density import LowRankGaussian

CHUNK = 200
"""Iterations before the first state. Each later chunk is twice as long, because it begins with an
empty memory of curvature: in a narrow valley, chunks of 200 creep."""
MEMORY = 20
"""Pairs of vectors that approximate the curvature."""


class Slope(NamedTuple):
    """Mean log likelihood of a density, and its gradient."""

    lml: float
    loadings: Tensor  # (D, K)
    mean: Tensor  # (D,)
    log_noise: Tensor  # (D,), of the logarithms of the noise variances


class Climbed(NamedTuple):
    """State after some iterations."""

    iterations: int  # of the last chunk, in tens: so they are the same on all machines
    lml: float
    density: LowRankGaussian
    steepness: float
    """Largest derivative by a parameter that is free to move, in nats. The loadings and the mean
    are measured in standard deviations, the noise variances by their logarithms."""


def climb(
    start: LowRankGaussian,
    slope_of: Callable[[LowRankGaussian], Slope],
    least_noise: Tensor,  # (D,)
    noises: int,
    iterations: int,
) -> Iterator[Climbed]:
    """Yield states on the way up from `start`, of so many iterations in all (a multiple of ten).
    `noises` is the number of free noise variances: D, 1 if all dimensions share one, or 0. They
    stay above `least_noise`."""
    dim, latent_dim = start.loadings.shape
    scale = (start.loadings.square().sum(1) + start.noise_variance).sqrt()
    log_noise = start.noise_variance.log()
    lowest = (least_noise.log() - log_noise)[:noises].clamp(max=0).tolist()
    bounds = [(None, None)] * (dim * (latent_dim + 1)) + [(low, None) for low in lowest]

    def density_of(moved: NDArray[np.float64]) -> LowRankGaussian:
        sizes = [dim * latent_dim, dim, noises]
        loadings, mean, noise = torch.split(torch.from_numpy(moved), sizes)
        return LowRankGaussian(
            loadings.view(dim, latent_dim) * scale[:, None],
            start.mean + mean * scale,
            (log_noise + (noise if noises else 0.0)).exp(),
        )

    def negative(moved: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        slope = slope_of(density_of(moved))
        noise = slope.log_noise if noises > 1 else slope.log_noise.sum()[None][:noises]
        parts = (slope.loadings * scale[:, None]).flatten(), slope.mean * scale, noise
        return -slope.lml, -torch.cat(parts).numpy()

    moved = torch.cat([(start.loadings / scale[:, None]).flatten(),
                       start.loadings.new_zeros(dim + noises)]).numpy()  # fmt: skip
    chunk = CHUNK
    while iterations > 0:
        most = min(chunk, iterations)
        options = {"maxiter": most, "maxfun": 4 * most, "maxcor": MEMORY, "ftol": 1e-13,
                   "gtol": 1e-8}  # fmt: skip
        found: Any = minimize(
            negative, moved, jac=True, method="L-BFGS-B", bounds=bounds, options=options
        )
        moved = found.x
        taken = 10 * max(1, math.ceil(found.nit / 10))
        iterations, chunk = iterations - taken, 2 * chunk
        held = np.zeros(len(moved), dtype=bool)
        held[len(moved) - noises :] = moved[len(moved) - noises :] <= np.array(lowest)
        free = np.where(held, np.minimum(found.jac, 0), found.jac)  # a held one may only rise
        yield Climbed(taken, -float(found.fun), density_of(moved), float(np.abs(free).max()))
