"""Fit a density by EM and L-BFGS-B, also to data with missing values."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.families.linear_gaussian.density import LOG_2PI, LowRankGaussian
from mptcore.families.linear_gaussian.moments import patterns_of
from mptcore.families.linear_gaussian.quasi_newton import Slope, climb
from mptcore.protocol.records import RunError
from mptcore.specs import FactorAnalysisModel, LinearGaussianSpec
from mptcore.specs.families.linear_gaussian import MAX_ITERATIONS

EM_ITERATIONS = 100
"""Iterations of EM before L-BFGS-B. EM is fast where the noise is small, where L-BFGS-B creeps."""
STANDSTILL = 1e-9
"""A fit ends when ten iterations raise the mean log likelihood by less than this, in nats."""
MAX_STEEPNESS = 1e-3
"""Largest derivative at a maximum. A line search may fail far from one, where the likelihood is
unbounded or the noise is tiny."""
MIN_SHARE = 1e-6
"""Minimum noise variance as a share of the dimension's variance (Heywood cases)."""
UNBOUNDED_SHARE = 1e-12
"""Share of the largest variance below which a shared noise variance goes to 0, or is lost in the
rounding errors of the column with this variance."""
CHUNK_NUMBERS = 2**22
"""Maximum number of entries of E[z zᵀ] in memory at a time."""


class Fitted(NamedTuple):
    """State of a fit."""

    iteration: int
    lml: float
    density: LowRankGaussian
    converged: bool


class Likelihood(NamedTuple):
    """Functions of a density that a fit needs."""

    step: Callable[[LowRankGaussian], LowRankGaussian]
    """A step of EM."""
    mean_log_prob: Callable[[LowRankGaussian], float]
    slope: Callable[[LowRankGaussian], Slope]


def iterate(
    density: LowRankGaussian, likelihood: Likelihood, least_noise: Tensor, noises: int
) -> Iterator[Fitted]:
    """Yield states on the way to a maximum of the likelihood, the last one converged or after
    MAX_ITERATIONS: each tenth iteration of EM, and if 100 are not enough, those of `climb`, which
    has the other arguments. Iterations are counted in tens."""
    best, iteration = -torch.inf, 0
    for iteration in range(1, min(EM_ITERATIONS, MAX_ITERATIONS) + 1):
        density = likelihood.step(density)
        if iteration % 10 == 0:
            reached = likelihood.mean_log_prob(density)
            converged = reached < best + STANDSTILL
            yield Fitted(iteration, reached, density, converged)
            if converged:
                return
            best = reached
    left = MAX_ITERATIONS - iteration
    for climbed in climb(density, likelihood.slope, least_noise, noises, left):
        iteration += climbed.iterations
        converged = climbed.lml < best + STANDSTILL and climbed.steepness < MAX_STEEPNESS
        yield Fitted(iteration, climbed.lml, climbed.density, converged)
        if converged:
            return
        best = climbed.lml


def fit_missing(spec: LinearGaussianSpec, x: Tensor) -> Iterator[Fitted]:
    """Yield states of the fit to x (N, D), NaN where a value is missing. It begins with PPCA's
    closed form for x with missing values at their column's mean, or for the complete observations,
    if that has a higher likelihood. For factor analysis, whose maximum does not depend on units,
    the closed form is that of the correlations."""
    data = _Observations.of(x.double())
    mean = data.x.sum(0) / data.counts
    centred = data.x - mean * data.observed  # 0 where missing
    variances = centred.square().sum(0) / data.counts
    is_scaled = isinstance(spec, FactorAnalysisModel)
    scale = variances.sqrt() if is_scaled else torch.ones_like(variances)
    least = MIN_SHARE * variances
    if not is_scaled:
        least = torch.full_like(variances, UNBOUNDED_SHARE * float(variances.max()))
    fixed = None if spec.noise_precision is None else 1 / spec.noise_precision

    def noise_of(each: Tensor) -> Tensor:
        """Return the noise variances of a step from the best one of each dimension."""
        if is_scaled:
            return torch.maximum(each, least)
        shared = fixed or float((data.counts * each).sum() / data.counts.sum())
        if shared <= least[0]:
            is_exact = fixed is None and bool((each <= MIN_SHARE * variances).all())
            refusal = _unbounded(spec.latent_dim) if is_exact else _lost(variances, fixed)
            raise RunError("invalid", refusal)
        return torch.full_like(each, shared)

    def start(rows: Tensor) -> LowRankGaussian:
        """Return the closed form for centred rows (n, D)."""
        shift = rows.mean(0)
        scaled = (rows - shift) / scale
        eigenvalues, eigenvectors = torch.linalg.eigh(scaled.mT @ scaled / len(scaled))
        leading, rest = eigenvalues[-spec.latent_dim :], eigenvalues[: -spec.latent_dim].mean()
        if fixed is None:  # a fixed noise would leave loadings at 0, where EM cannot move them
            leading = leading - rest
        loadings = eigenvectors[:, -spec.latent_dim :] * leading.clamp(min=0).sqrt()
        noise = noise_of(scale.square() * rest.clamp(min=0))
        return LowRankGaussian(scale[:, None] * loadings, mean + shift, noise)

    starts, complete = [start(centred)], data.observed.all(1)
    if complete.sum() > 2 * len(mean):
        with suppress(RunError):  # the other rows may have the variance that these lack
            starts.append(start(centred[complete]))
    best = max(starts, key=data.mean_log_prob)
    likelihood = Likelihood(lambda d: data.em_step(d, noise_of), data.mean_log_prob, data.slope)
    noises = len(mean) if is_scaled else int(fixed is None)
    for fitted in iterate(best, likelihood, least, noises):
        noise_of(fitted.density.noise_variance)  # it may have gone to 0
        yield fitted


def _unbounded(latent_dim: int) -> str:
    """Return why a fit without any noise is refused."""
    return (
        f"{latent_dim} latent dimensions fit all observed values exactly, so the likelihood has no "
        "maximum: lower latent_dim or give a noise_precision"
    )


def _lost(variances: Tensor, fixed: float | None) -> str:
    """Return why a fit to columns of these variances (D,) is refused, whose noise variance, perhaps
    a fixed one, is below the rounding errors of the largest."""
    least, largest = (extreme.sqrt().item() for extreme in (variances.min(), variances.max()))
    lower = "" if fixed is None else "lower noise_precision, "
    return (
        f"standard deviations of columns are {least:.3g} to {largest:.3g}, and values are missing: "
        "PPCA's noise variance, the same in all columns, is lost in the rounding errors of the "
        f"largest. Set data.standardize=columns, {lower}or use model.family=factor_analysis"
    )


class _Posterior(NamedTuple):
    """Posterior of z for some observations."""

    rows: slice
    centred: Tensor  # x − mu, 0 where missing, (n, D)
    mean: Tensor  # (n, K)
    covariance: Tensor  # (n, K, K)
    log_det: Tensor  # of A_O = I + W_Oᵀ Ψ_O⁻¹ W_O, (n,)


class _Sums(NamedTuple):
    """Sums over observations, with the posterior moments of (z, 1)."""

    moments: Tensor  # of E[(z, 1) (z, 1)ᵀ] over those that have x_j, (D, K + 1, K + 1)
    cross: Tensor  # of (x_j − mu_j) E[(z, 1)], (D, K + 1)
    squares: Tensor  # of (x_j − mu_j)², (D,)
    latent: Tensor  # mean over all of E[(z, 1) (z, 1)ᵀ], (K + 1, K + 1)
    log_prob: float


class _Observations(NamedTuple):
    """Observations with the same observed dimensions share a pattern."""

    x: Tensor  # (N, D), 0 where missing
    observed: Tensor  # (N, D), 1 or 0
    patterns: Tensor  # (P, D), 1 or 0
    pattern_of: Tensor  # (N,)
    counts: Tensor  # (D,), number of observed values

    @classmethod
    def of(cls, x: Tensor) -> "_Observations":
        """Sort the observations x (N, D), NaN where a value is missing, by their patterns."""
        patterns, pattern_of = patterns_of(x)
        order = pattern_of.argsort(stable=True)
        x, pattern_of = x[order], pattern_of[order]
        seen = (~x.isnan()).to(x)
        return cls(x.nan_to_num(), seen, patterns.to(x), pattern_of, seen.sum(0))

    def em_step(
        self, density: LowRankGaussian, noise_of: Callable[[Tensor], Tensor]
    ) -> LowRankGaussian:
        """Return the parameters after a step of EM with expanded parameters (Liu, Rubin & Wu 1998):
        z ~ N(a, R). w_j and mu_j are the regression of x_j on (z, 1) over the observations that
        have x_j, given E[z] and E[z zᵀ]; a and R are the moments of z over all observations. The
        same density with z ~ N(0, I) has mu + W a and W R^½. Without a and R, EM creeps where the
        noise is small: at precision 1e6 it is 0.05 nats short after 20,000 steps, not 30."""
        sums = self._sums(density)
        moments, cross, latent = sums.moments, sums.cross, sums.latent
        coefficients = torch.cholesky_solve(cross[..., None], torch.linalg.cholesky(moments))[
            ..., 0
        ]
        noise = (sums.squares - (coefficients * cross).sum(1)) / self.counts
        loadings, shift = coefficients[:, :-1], latent[:-1, -1]
        root = torch.linalg.cholesky(latent[:-1, :-1] - shift[:, None] * shift)
        mean = density.mean + coefficients[:, -1] + loadings @ shift
        return LowRankGaussian(loadings @ root, mean, noise_of(noise))

    def mean_log_prob(self, density: LowRankGaussian) -> float:
        """Return the mean over observations of log p(x_O)."""
        total = sum(self._log_prob(density, part) for part in self._posteriors(density))
        return total / len(self.x)

    def slope(self, density: LowRankGaussian) -> Slope:
        """Return the mean of log p(x_O) and its gradient, which is the expected one of log p(x_O,
        z) over the posterior of z."""
        loadings, noise, sums = density.loadings, density.noise_variance, self._sums(density)
        through = (sums.moments[:, :, :-1] @ loadings[..., None])[..., 0]  # W_j E[z zᵀ], (D, K + 1)
        left = (sums.cross - through) / noise[:, None]
        squares = sums.squares - 2 * (loadings * sums.cross[:, :-1]).sum(1)
        squares = squares + (loadings * through[:, :-1]).sum(1)
        log_noise = 0.5 * (squares / noise - self.counts)
        parts = (left[:, :-1], left[:, -1], log_noise)
        return Slope(sums.log_prob / len(self.x), *(part / len(self.x) for part in parts))

    def _log_prob(self, density: LowRankGaussian, part: _Posterior) -> float:
        """Return the sum of log p(x_O) over some observations."""
        observed, noise = self.observed[part.rows], density.noise_variance
        left = part.centred - observed * (part.mean @ density.loadings.mT)
        squares = (left.square() / noise).sum(1) + part.mean.square().sum(1)
        return -0.5 * float((squares + part.log_det + observed @ (LOG_2PI + noise.log())).sum())

    def _sums(self, density: LowRankGaussian) -> "_Sums":
        dim, wide = density.dim, density.loadings.shape[1] + 1
        moments = self.x.new_zeros(dim, wide, wide)
        cross = self.x.new_zeros(dim, wide)
        squares = self.x.new_zeros(dim)
        latent = self.x.new_zeros(wide, wide)
        log_prob = 0.0
        for part in self._posteriors(density):
            z = torch.cat([part.mean, torch.ones_like(part.mean[:, :1])], 1)
            second = z[:, :, None] * z[:, None, :]
            second[:, :-1, :-1] += part.covariance
            moments += (self.observed[part.rows].mT @ second.flatten(1)).view_as(moments)
            cross += part.centred.mT @ z
            latent += second.sum(0) / len(self.x)
            squares += part.centred.square().sum(0)
            log_prob += self._log_prob(density, part)
        return _Sums(moments, cross, squares, latent, log_prob)

    def _posteriors(self, density: LowRankGaussian) -> Iterator[_Posterior]:
        """Yield the posteriors of z, some observations at a time."""
        latent_dim = density.loadings.shape[1]
        precise = density.loadings / density.noise_variance[:, None]
        outer = (precise[:, :, None] * density.loadings[:, None, :]).flatten(1)
        eye = torch.eye(latent_dim).to(outer)
        step = max(1, CHUNK_NUMBERS // (latent_dim + 1) ** 2)
        for start in range(0, len(self.x), step):
            rows = slice(start, start + step)
            own = self.pattern_of[rows] - self.pattern_of[start]
            patterns = self.patterns[self.pattern_of[start] :][: int(own[-1]) + 1]
            information = (patterns @ outer).view(-1, latent_dim, latent_dim)
            factor = torch.linalg.cholesky(information + eye)
            covariance = torch.cholesky_inverse(factor)[own]
            log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)[own]
            centred = self.x[rows] - self.observed[rows] * density.mean
            mean = (covariance @ (centred @ precise)[..., None])[..., 0]
            yield _Posterior(rows, centred, mean, covariance, log_det)
