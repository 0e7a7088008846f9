"""The direct route as a published script would write it: one inverse for each mask, and the
residual of every observation. There are several forms; the fastest one is the baseline."""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Score = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""The mean over observations (N, D) and masked j of log p(x_j | x_R), given the covariance (D, D)
and an order (D,) of the dimensions; its first `size` dimensions are masked."""


def by_masks(x: Tensor, covariance: Tensor, order: Tensor, size: int) -> Tensor:
    """Use boolean masks and a matrix inverse."""
    masked = torch.zeros(len(order), dtype=torch.bool)
    masked[order[:size]] = True
    rest = ~masked
    inverse = torch.inverse(covariance[rest][:, rest])
    cross = covariance[masked][:, rest]
    return _log_prob(
        x[:, masked], x[:, rest], covariance.diagonal()[masked], cross, cross @ inverse
    )


def by_slices(x: Tensor, covariance: Tensor, order: Tensor, size: int) -> Tensor:
    """Covariance and data in the order drawn, slices of them, and an inverse."""
    x, covariance = x[:, order], covariance[order][:, order]
    cross = covariance[:size, size:]
    gain = cross @ torch.inverse(covariance[size:, size:])
    return _log_prob(x[:, :size], x[:, size:], covariance.diagonal()[:size], cross, gain)


def by_solving(x: Tensor, covariance: Tensor, order: Tensor, size: int) -> Tensor:
    """The same with a Cholesky factor and solves."""
    x, covariance = x[:, order], covariance[order][:, order]
    cross = covariance[:size, size:]
    factor = torch.linalg.cholesky(covariance[size:, size:])
    gain = torch.cholesky_solve(cross.mT, factor).mT
    return _log_prob(x[:, :size], x[:, size:], covariance.diagonal()[:size], cross, gain)


def _log_prob(
    masked: Tensor, rest: Tensor, variance: Tensor, cross: Tensor, gain: Tensor
) -> Tensor:
    own = variance - (gain * cross).sum(1)
    residual = masked - rest @ gain.mT
    return (-0.5 * (math.log(2 * math.pi) + own.log() + residual**2 / own)).mean()


@dataclass(frozen=True)
class Form:
    """Variant of the direct computation: code, arithmetic, number of threads."""

    score: Score
    dtype: torch.dtype
    threads: int

    def __str__(self) -> str:
        precision = str(self.dtype).removeprefix("torch.")
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.score.__name__.replace('_', ' ')}, {precision}, {threads}"


def quickest(seconds: Callable[[Form], float], threads: int) -> tuple[Form, float]:
    """The quickest form on one thread or `threads`, and the best of its three passes."""
    first = {form: _on(form, seconds) for form in _forms(threads)}
    best = min(first, key=first.__getitem__)
    return best, min(first[best], *(_on(best, seconds) for _ in range(2)))


def _forms(threads: int) -> Iterator[Form]:
    scores: tuple[Score, ...] = (by_masks, by_slices, by_solving)
    precisions = (torch.float32, torch.float64)
    for form in itertools.product(scores, precisions, sorted({1, threads})):
        yield Form(*form)


def _on(form: Form, seconds: Callable[[Form], float]) -> float:
    before = torch.get_num_threads()
    torch.set_num_threads(form.threads)
    try:
        return seconds(form)
    finally:
        torch.set_num_threads(before)


def covariance_of(loadings: Tensor, variance: float) -> Tensor:
    return loadings @ loadings.mT + variance * torch.eye(len(loadings), dtype=loadings.dtype)


def scores(
    form: Form, x: Tensor, loadings: Tensor, variance: float, masks: Tensor
) -> tuple[float, Tensor]:
    """Seconds, and the score of each mask (B, D)."""
    x, loadings = x.to(form.dtype), loadings.to(form.dtype)
    orders = [(mask.logical_not().argsort(stable=True), int(mask.sum())) for mask in masks]
    start = time.perf_counter()
    covariance = covariance_of(loadings, variance)
    found = [form.score(x, covariance, order, size).item() for order, size in orders]
    return time.perf_counter() - start, torch.tensor(found, dtype=torch.float64)


def time_to_train(form: Form, x: Tensor, latent_dim: int, variance: float, epochs: int) -> float:
    """Seconds to train one start on one mask of each size an epoch."""
    x, dim = x.to(form.dtype), x.shape[1]
    loadings = torch.randn(dim, latent_dim, dtype=x.dtype, requires_grad=True)
    adam = torch.optim.Adam([loadings], lr=0.01)
    start = time.perf_counter()
    for _ in range(epochs):
        covariance = covariance_of(loadings, variance)
        parts = [form.score(x, covariance, torch.randperm(dim), m) for m in range(1, dim + 1)]
        total = -torch.stack(parts).sum()
        adam.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        adam.step()
        with torch.no_grad():
            normal = torch.distributions.MultivariateNormal(
                torch.zeros(dim, dtype=x.dtype), covariance_of(loadings, variance)
            )
            normal.log_prob(x).mean().item()  # type: ignore[no-untyped-call]
    return time.perf_counter() - start
