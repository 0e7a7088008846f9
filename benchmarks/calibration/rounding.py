"""Scores of PPCA and factor analysis against fifty digits: the largest relative error of single
masks of all sizes, and of their sum, by noise precision. Eight digits are promised."""

import torch
from torch import Tensor

from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.moments import moment_of
from mptcore.families.linear_gaussian.routes import moment_solver, solver_for
from mptcore.families.linear_gaussian.solver import Solver
from tests.support.exact import Exact, relative_error

SHAPES = ((6, 2, 40), (20, 5, 30), (50, 10, 20), (200, 50, 3))
"""D, K, N."""
PRECISIONS = (1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6, 1e8, None)
"""None: a noise variance of its own for each dimension, from 1e4 to 1e-8."""
CPU = torch.device("cpu")


def main() -> None:
    torch.set_num_threads(1)
    print("| D, K | noise precision | data | route | error of a mask | of the sum | quick route |")
    print("|---|---|---|---|---|---|---|")
    for dim, latent_dim, n in SHAPES:
        for precision in PRECISIONS:
            for fits in (True, False):
                _row(dim, latent_dim, n, precision, fits)


def _row(dim: int, latent_dim: int, n: int, precision: float | None, fits: bool) -> None:
    generator = torch.Generator().manual_seed(dim)
    density, x = _problem(dim, latent_dim, n, precision, fits, generator)
    exact = Exact.of(x, density.mean, density.loadings, density.noise_variance)
    model = solver_for(density, x, CPU)
    quick = moment_solver(
        density.loadings,
        density.noise_variance,
        moment_of(x, density.mean, density.noise_variance.min().item()),
    )
    masks = torch.stack([_mask(dim, size, generator) for size in _sizes(dim, latent_dim)])
    truth = [exact.score(mask) for mask in masks]
    route = "quick" if model.note is None else "residuals"
    worst, total = _errors(model, masks, truth)
    data = "the model's" if fits else "others"
    noise = "mixed" if precision is None else f"{precision:g}"
    print(
        f"| {dim}, {latent_dim} | {noise} | {data} | {route} "
        f"| {worst:.1e} | {total:.1e} | {_errors(quick, masks, truth)[0]:.1e} |",
        flush=True,
    )
    assert max(worst, total) < 1e-8


def _errors(model: Solver, masks: Tensor, truth: list[object]) -> tuple[float, float]:
    try:
        found = model.scores(masks).tolist()
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return float("nan"), float("nan")
    errors = [relative_error(a, b) for a, b in zip(found, truth, strict=True)]
    return max(errors), relative_error(sum(found), sum(truth))


def _problem(
    dim: int, latent_dim: int, n: int, precision: float | None, fits: bool, g: torch.Generator
) -> tuple[LowRankGaussian, Tensor]:
    loadings = torch.randn(dim, latent_dim, generator=g, dtype=torch.float64)
    noise = 10 ** torch.linspace(4, -8, dim, dtype=torch.float64)[torch.randperm(dim, generator=g)]
    if precision is not None:
        noise = torch.full_like(noise, 1 / precision)
    x = torch.randn(n, dim, generator=g, dtype=torch.float64)
    if fits:
        latent = torch.randn(n, latent_dim, generator=g, dtype=torch.float64)
        x = latent @ loadings.mT + noise.sqrt() * x
    return LowRankGaussian(loadings, torch.zeros(dim, dtype=torch.float64), noise), x


def _sizes(dim: int, latent_dim: int) -> list[int]:
    """All sizes; of a wide model those about |R| = K, where digits are lost first."""
    if dim <= 50:
        return list(range(1, dim + 1))
    edge = dim - latent_dim
    return sorted({1, dim // 2, edge - 2, edge - 1, edge, edge + 1, dim - 1, dim})


def _mask(dim: int, size: int, generator: torch.Generator) -> Tensor:
    order = torch.randperm(dim, generator=generator)
    return torch.zeros(dim, dtype=torch.bool).index_fill_(0, order[:size], True)
