"""Choose how a linear Gaussian is computed: the only place that knows all solvers.

A solver then takes compiled loops if they fit (`fits_factored`, `fits_dense` in
`kernel_tables.py`), else torch. `moment_of` in `moments.py` tells whether the data have a low rank.
A training asks `solver_of_step` for each step, and goes over to residuals for good in `trainer.py`
(`_choose_route`).
"""

import torch
from torch import Tensor

from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.moment_solvers import DenseSolver, FactoredSolver
from mptcore.families.linear_gaussian.moments import (
    DenseMoment,
    FactoredMoment,
    Moment,
    data_factor,
    moment_of,
    variances,
)
from mptcore.families.linear_gaussian.pattern_solver import PatternSolver
from mptcore.families.linear_gaussian.residual_solver import ResidualSolver
from mptcore.families.linear_gaussian.rounding import keeps_digits
from mptcore.families.linear_gaussian.solver import Solver


def solver_for(
    density: LowRankGaussian,
    x: Tensor,  # (N, D), NaN where a value is missing
    device: torch.device,
) -> Solver:
    """Return the solver of a density and its data: sums of moments if they are precise enough,
    otherwise residuals; with missing values, one of them for each set of observed dimensions."""
    if x.isnan().any():
        return PatternSolver(
            x, lambda observed, rows: solver_for(density.marginal(observed), rows, device), device
        )
    min_noise = density.noise_variance.min().item()
    density = density.to(device, torch.float64)
    loadings, noise_variance = density.loadings, density.noise_variance
    if keeps_digits(loadings, noise_variance, variances(x, density.mean)):
        return moment_solver(loadings, noise_variance, moment_of(x, density.mean, min_noise))
    factor = data_factor(x, density.mean)
    return ResidualSolver(loadings, noise_variance, factor).compressed()


def solver_of_step(
    loadings: Tensor,  # (S, D, K)
    noise_variance: Tensor,  # (S, D)
    moment: Moment,
    by_residuals: bool,
) -> Solver:
    """Return the solver of the models of S starts. Their training decides once by `keeps_digits`
    that it goes on by residuals, and then has factors of its data."""
    if not by_residuals:
        return moment_solver(loadings, noise_variance, moment)
    assert isinstance(moment, FactoredMoment)
    return ResidualSolver(loadings, noise_variance, moment.factor)


def moment_solver(
    loadings: Tensor,  # (D, K), or (S, D, K)
    noise_variance: Tensor,  # (D,), or (S, D)
    moment: Moment,
) -> FactoredSolver | DenseSolver:
    """Return the solver for a moment of low or full rank."""
    match moment.to(loadings):
        case FactoredMoment() as factored:
            return FactoredSolver(loadings, noise_variance, factored)
        case DenseMoment() as dense:
            return DenseSolver(loadings, noise_variance, dense)
