"""The direct route as a published script would write it: one inverse for each mask, and the
residual of every observation."""

import math
import time
from collections.abc import Iterable

import torch
from torch import Tensor


def score(x: Tensor, loadings: Tensor, variance: float, masked: Tensor) -> Tensor:
    """The mean over observations and masked j of log p(x_j | x_R), for one mask (D,)."""
    covariance = loadings @ loadings.mT + variance * torch.eye(len(loadings), dtype=x.dtype)
    rest = ~masked
    inverse = torch.inverse(covariance[rest][:, rest])
    cross = covariance[masked][:, rest]
    mean = x[:, rest] @ (cross @ inverse).mT
    own = torch.diagonal(covariance[masked][:, masked] - cross @ inverse @ cross.mT)
    return (-0.5 * (math.log(2 * math.pi) + own.log() + (x[:, masked] - mean) ** 2 / own)).mean()


def time_of(
    x: Tensor, loadings: Tensor, variance: float, masks: Iterable[Tensor]
) -> tuple[float, list[float]]:
    """Seconds, and the score of each mask."""
    start = time.perf_counter()
    scores = [score(x, loadings, variance, mask).item() for mask in masks]
    return time.perf_counter() - start, scores


def time_to_train(x: Tensor, latent_dim: int, variance: float, epochs: int, per_size: int) -> float:
    """Seconds to train one start on `per_size` masks of each size an epoch."""
    dim = x.shape[1]
    loadings = torch.randn(dim, latent_dim, dtype=x.dtype, requires_grad=True)
    adam = torch.optim.Adam([loadings], lr=0.01)
    start = time.perf_counter()
    for _ in range(epochs):
        total = torch.zeros((), dtype=x.dtype)
        for size in range(1, dim + 1):
            for _ in range(per_size):
                masked = torch.zeros(dim, dtype=torch.bool)
                masked[torch.randperm(dim)[:size]] = True
                total = total - score(x, loadings, variance, masked) / per_size
        adam.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        adam.step()
        with torch.no_grad():
            covariance = loadings @ loadings.mT + variance * torch.eye(dim, dtype=x.dtype)
            normal = torch.distributions.MultivariateNormal(
                torch.zeros(dim, dtype=x.dtype), covariance
            )
            normal.log_prob(x).mean().item()  # type: ignore[no-untyped-call]
    return time.perf_counter() - start
