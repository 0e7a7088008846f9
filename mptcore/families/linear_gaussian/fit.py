"""Fit a density by EM and L-BFGS-B, to complete data and to data with missing values."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian.density import LOG_2PI, LowRankGaussian
from mptcore.families.linear_gaussian.initial import closed_form
from mptcore.families.linear_gaussian.moments import patterns_of, second_moment
from mptcore.protocol.records import RunError
from mptcore.specs import FactorAnalysisModel, LinearGaussianSpec
from mptcore.specs.families.linear_gaussian import MAX_ITERATIONS

EM_ITERATIONS = 100
"""Iterations of EM before L-BFGS-B. EM is fast where the noise is small and L-BFGS-B creeps; EM
creeps where noise variances go to 0 or hardly matter."""
LBFGS_CHUNK = 200
"""Iterations of L-BFGS-B before its first state. Each later chunk is twice as long, because it
begins with an empty memory of curvature: in a narrow valley, chunks of 200 creep."""
LBFGS_MEMORY = 20
"""Pairs of vectors that approximate the curvature."""
STANDSTILL = 1e-9
"""A fit ends when ten iterations raise the mean log likelihood by less than this, in nats."""
MAX_GRADIENT = 1e-3
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


class LikelihoodGradient(NamedTuple):
    """Mean log likelihood of a density, and its gradient."""

    lml: float
    loadings: Tensor  # (D, K)
    mean: Tensor  # (D,)
    log_noise: Tensor  # (D,), of the logarithms of the noise variances


class FitObjective(NamedTuple):
    """Functions of a density that a fit needs."""

    em_step: Callable[[LowRankGaussian], LowRankGaussian]
    mean_log_prob: Callable[[LowRankGaussian], float]
    gradient: Callable[[LowRankGaussian], LikelihoodGradient]


def fit_of(spec: LinearGaussianSpec, data: Dataset) -> Iterator[Fitted] | None:
    """Return the fit of a model that needs iterations, or None for other models."""
    if spec.init != "maximum_likelihood":
        return None
    if data.x.isnan().any():
        return fit_missing(spec, data.x)
    if isinstance(spec, FactorAnalysisModel):
        return fit_complete(second_moment(data.x, data.mean), data.mean, spec.latent_dim)
    return None


def fit_complete(covariance: Tensor, mean: Tensor, latent_dim: int) -> Iterator[Fitted]:
    """Yield states of the fit of factor analysis to data with this mean (D,) and covariance (D, D),
    divided by N: EM (Rubin & Thayer 1982), then L-BFGS-B. It begins with PPCA's closed form for the
    correlations: with the covariance, the start and so the maximum that is found would depend on
    the units of the columns."""
    min_noise = MIN_SHARE * covariance.diagonal()

    def em_step(density: LowRankGaussian) -> LowRankGaussian:
        expected = _CompleteMoments.of(covariance, density)
        second = torch.linalg.cholesky(expected.second)
        loadings = torch.cholesky_solve(expected.cross.mT, second).mT
        noise = covariance.diagonal() - (loadings * expected.cross).sum(1)
        return LowRankGaussian(loadings, mean, torch.maximum(noise, min_noise))

    def gradient(density: LowRankGaussian) -> LikelihoodGradient:
        expected = _CompleteMoments.of(covariance, density)
        loadings, noise = density.loadings, density.noise_variance
        through = loadings @ expected.second
        squares = covariance.diagonal() + (loadings * (through - 2 * expected.cross)).sum(1)
        return LikelihoodGradient(
            mean_log_prob(density),
            (expected.cross - through) / noise[:, None],
            torch.zeros_like(mean),
            0.5 * (squares / noise - 1),
        )

    def mean_log_prob(density: LowRankGaussian) -> float:
        return _complete_log_prob(covariance, density.loadings, density.noise_variance)

    scale = covariance.diagonal().sqrt()
    correlation = covariance / (scale[:, None] * scale)
    scaled = closed_form(correlation, mean, latent_dim)
    noise = scale.square() * scaled.noise_variance
    start = LowRankGaussian(scale[:, None] * scaled.loadings, mean, noise)
    yield from iterate(start, FitObjective(em_step, mean_log_prob, gradient), min_noise, len(mean))


def fit_missing(spec: LinearGaussianSpec, x: Tensor) -> Iterator[Fitted]:
    """Yield states of the fit to x (N, D), NaN where a value is missing. It begins with PPCA's
    closed form for x with missing values at their column's mean, or for the complete observations,
    if that has a higher likelihood. For factor analysis, whose maximum does not depend on units,
    the closed form is that of the correlations."""
    data = _Observations.of(x.double())
    mean = data.x.sum(0) / data.counts
    centred = data.x - mean * data.observed  # 0 where missing
    variances = centred.square().sum(0) / data.counts
    each_noise = isinstance(spec, FactorAnalysisModel)
    scale = variances.sqrt() if each_noise else torch.ones_like(variances)
    min_noise = MIN_SHARE * variances
    if not each_noise:
        min_noise = torch.full_like(variances, UNBOUNDED_SHARE * float(variances.max()))
    fixed = None if spec.noise_precision is None else 1 / spec.noise_precision

    def noise_of(each: Tensor) -> Tensor:
        """Return the noise variances of a step from the best one of each dimension."""
        if each_noise:
            return torch.maximum(each, min_noise)
        shared = fixed or float((data.counts * each).sum() / data.counts.sum())
        if shared <= min_noise[0]:
            is_exact = fixed is None and bool((each <= MIN_SHARE * variances).all())
            refusal = _unbounded(spec.latent_dim) if is_exact else _lost(variances, fixed)
            raise RunError("invalid", refusal)
        return torch.full_like(each, shared)

    def start(rows: Tensor) -> LowRankGaussian:
        """Return the closed form for centred rows (n, D)."""
        shift = rows.mean(0)
        scaled = (rows - shift) / scale
        eigenvalues, eigenvectors = torch.linalg.eigh(scaled.mT @ scaled / len(scaled))
        leading, beyond = eigenvalues[-spec.latent_dim :], eigenvalues[: -spec.latent_dim].mean()
        if fixed is None:  # a fixed noise would leave loadings at 0, where EM cannot move them
            leading = leading - beyond
        loadings = eigenvectors[:, -spec.latent_dim :] * leading.clamp(min=0).sqrt()
        noise = noise_of(scale.square() * beyond.clamp(min=0))
        return LowRankGaussian(scale[:, None] * loadings, mean + shift, noise)

    starts, complete = [start(centred)], data.observed.all(1)
    if complete.sum() > 2 * len(mean):
        with suppress(RunError):  # the other rows may have the variance that these lack
            starts.append(start(centred[complete]))
    best = max(starts, key=data.mean_log_prob)
    objective = FitObjective(
        lambda density: data.em_step(density, noise_of), data.mean_log_prob, data.gradient
    )
    free_noises = len(mean) if each_noise else int(fixed is None)
    for fitted in iterate(best, objective, min_noise, free_noises):
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
    smallest, largest = (extreme.sqrt().item() for extreme in (variances.min(), variances.max()))
    lower = "" if fixed is None else "lower noise_precision, "
    return (
        f"standard deviations of columns are {smallest:.3g} to {largest:.3g}, and values are "
        "missing: PPCA's noise variance, the same in all columns, is lost in the rounding errors "
        f"of the largest. Set data.standardize=columns, {lower}or use model.family=factor_analysis"
    )


def iterate(
    density: LowRankGaussian, objective: FitObjective, min_noise: Tensor, free_noises: int
) -> Iterator[Fitted]:
    """Yield states on the way to a maximum of the likelihood, the last one converged or after
    MAX_ITERATIONS: each tenth iteration of EM, and if 100 are not enough, those of
    `maximize`, which has the other arguments. Iterations are counted in tens."""
    best, iteration = -torch.inf, 0
    for iteration in range(1, min(EM_ITERATIONS, MAX_ITERATIONS) + 1):
        density = objective.em_step(density)
        if iteration % 10 == 0:
            lml = objective.mean_log_prob(density)
            converged = lml < best + STANDSTILL
            yield Fitted(iteration, lml, density, converged)
            if converged:
                return
            best = lml
    remaining = MAX_ITERATIONS - iteration
    for state in maximize(density, objective.gradient, min_noise, free_noises, remaining):
        iteration += state.iterations
        converged = state.lml < best + STANDSTILL and state.max_gradient < MAX_GRADIENT
        yield Fitted(iteration, state.lml, state.density, converged)
        if converged:
            return
        best = state.lml


class LbfgsState(NamedTuple):
    """State after some iterations of L-BFGS-B."""

    iterations: int  # of the last chunk, in tens: so they are the same on all machines
    lml: float
    density: LowRankGaussian
    max_gradient: float
    """Largest derivative by a parameter that is free to move, in nats. The loadings and the mean
    are measured in standard deviations, the noise variances by their logarithms."""


def maximize(
    start: LowRankGaussian,
    gradient_of: Callable[[LowRankGaussian], LikelihoodGradient],
    min_noise: Tensor,  # (D,)
    free_noises: int,
    iterations: int,
) -> Iterator[LbfgsState]:
    """Yield states on the way up from `start`, of so many iterations in all (a multiple of ten).
    `free_noises` is the number of free noise variances: D, 1 if all dimensions share one, or 0.
    They stay above `min_noise`."""
    dim, latent_dim = start.loadings.shape
    scale = (start.loadings.square().sum(1) + start.noise_variance).sqrt()
    log_noise = start.noise_variance.log()
    lowest = (min_noise.log() - log_noise)[:free_noises].clamp(max=0).tolist()
    bounds = [(None, None)] * (dim * (latent_dim + 1)) + [(low, None) for low in lowest]

    def density_of(parameters: NDArray[np.float64]) -> LowRankGaussian:
        sizes = [dim * latent_dim, dim, free_noises]
        loadings, mean, noise = torch.split(torch.from_numpy(parameters), sizes)
        return LowRankGaussian(
            loadings.view(dim, latent_dim) * scale[:, None],
            start.mean + mean * scale,
            (log_noise + (noise if free_noises else 0.0)).exp(),
        )

    def negative(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        gradient = gradient_of(density_of(parameters))
        noise = gradient.log_noise
        if free_noises <= 1:
            noise = noise.sum()[None][:free_noises]
        parts = (gradient.loadings * scale[:, None]).flatten(), gradient.mean * scale, noise
        return -gradient.lml, -torch.cat(parts).numpy()

    parameters = torch.cat([(start.loadings / scale[:, None]).flatten(),
                            start.loadings.new_zeros(dim + free_noises)]).numpy()  # fmt: skip
    chunk = LBFGS_CHUNK
    while iterations > 0:
        max_iterations = min(chunk, iterations)
        options = {"maxiter": max_iterations, "maxfun": 4 * max_iterations, "maxcor": LBFGS_MEMORY,
                   "ftol": 1e-13, "gtol": 1e-8}  # fmt: skip
        result: Any = minimize(
            negative, parameters, jac=True, method="L-BFGS-B", bounds=bounds, options=options
        )
        parameters = result.x
        taken = 10 * max(1, math.ceil(result.nit / 10))
        iterations, chunk = iterations - taken, 2 * chunk
        noises = slice(len(parameters) - free_noises, None)
        at_bound = np.zeros(len(parameters), dtype=bool)
        at_bound[noises] = parameters[noises] <= np.array(lowest)
        free = np.where(at_bound, np.minimum(result.jac, 0), result.jac)  # these may only rise
        lml, density = -float(result.fun), density_of(parameters)
        yield LbfgsState(taken, lml, density, float(np.abs(free).max()))


class _CompleteMoments(NamedTuple):
    """Means over data with covariance C. E[z | x] is G (x − mu), G = (I + Wᵀ Ψ⁻¹ W)⁻¹ Wᵀ Ψ⁻¹."""

    cross: Tensor  # of (x − mu) E[z]ᵀ, C Gᵀ, (D, K)
    second: Tensor  # of E[z zᵀ], I − G W + G C Gᵀ, (K, K)

    @classmethod
    def of(cls, covariance: Tensor, density: LowRankGaussian) -> "_CompleteMoments":
        loadings = density.loadings
        precise = loadings / density.noise_variance[:, None]
        eye = torch.eye(loadings.shape[1], dtype=loadings.dtype)
        factor = torch.linalg.cholesky(eye + loadings.mT @ precise)
        gain = torch.cholesky_solve(precise.mT, factor)
        cross = covariance @ gain.mT
        return cls(cross, eye - gain @ loadings + gain @ cross)


def _complete_log_prob(covariance: Tensor, loadings: Tensor, noise: Tensor) -> float:
    """Return the mean of log p(x). The squares are those of x − mu − W E[z] and E[z], which do not
    cancel: where two noise variances are small, diag(C) / psi less what z explains has errors of
    1e-5 nats."""
    precise = loadings / noise[:, None]
    eye = torch.eye(loadings.shape[1], dtype=loadings.dtype)
    factor = torch.linalg.cholesky(eye + loadings.mT @ precise)
    gain = torch.cholesky_solve(precise.mT, factor)
    cross = covariance @ gain.mT
    means = gain @ cross
    residual = covariance.diagonal() + (loadings * (loadings @ means - 2 * cross)).sum(1)
    log_det = (LOG_2PI + noise.log()).sum() + 2 * factor.diagonal().log().sum()
    return -0.5 * float(log_det + (residual / noise).sum() + means.trace())


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
        observed = (~x.isnan()).to(x)
        return cls(x.nan_to_num(), observed, patterns.to(x), pattern_of, observed.sum(0))

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
        factor = torch.linalg.cholesky(moments)
        coefficients = torch.cholesky_solve(cross[..., None], factor)[..., 0]
        noise = (sums.squares - (coefficients * cross).sum(1)) / self.counts
        loadings, shift = coefficients[:, :-1], latent[:-1, -1]
        root = torch.linalg.cholesky(latent[:-1, :-1] - shift[:, None] * shift)
        mean = density.mean + coefficients[:, -1] + loadings @ shift
        return LowRankGaussian(loadings @ root, mean, noise_of(noise))

    def mean_log_prob(self, density: LowRankGaussian) -> float:
        """Return the mean over observations of log p(x_O)."""
        total = sum(self._log_prob(density, part) for part in self._posteriors(density))
        return total / len(self.x)

    def gradient(self, density: LowRankGaussian) -> LikelihoodGradient:
        """Return the mean of log p(x_O) and its gradient, which is the expected one of log p(x_O,
        z) over the posterior of z."""
        loadings, noise, sums = density.loadings, density.noise_variance, self._sums(density)
        through = (sums.moments[:, :, :-1] @ loadings[..., None])[..., 0]  # W_j E[z zᵀ], (D, K + 1)
        residual = (sums.cross - through) / noise[:, None]
        squares = sums.squares - 2 * (loadings * sums.cross[:, :-1]).sum(1)
        squares = squares + (loadings * through[:, :-1]).sum(1)
        log_noise = 0.5 * (squares / noise - self.counts)
        parts = (residual[:, :-1], residual[:, -1], log_noise)
        return LikelihoodGradient(
            sums.log_prob / len(self.x), *(part / len(self.x) for part in parts)
        )

    def _log_prob(self, density: LowRankGaussian, part: _Posterior) -> float:
        """Return the sum of log p(x_O) over some observations."""
        observed, noise = self.observed[part.rows], density.noise_variance
        residual = part.centred - observed * (part.mean @ density.loadings.mT)
        squares = (residual.square() / noise).sum(1) + part.mean.square().sum(1)
        return -0.5 * float((squares + part.log_det + observed @ (LOG_2PI + noise.log())).sum())

    def _sums(self, density: LowRankGaussian) -> "_Sums":
        dim, size = density.dim, density.loadings.shape[1] + 1
        moments = self.x.new_zeros(dim, size, size)
        cross = self.x.new_zeros(dim, size)
        squares = self.x.new_zeros(dim)
        latent = self.x.new_zeros(size, size)
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
        for first in range(0, len(self.x), step):
            rows = slice(first, first + step)
            indices = self.pattern_of[rows] - self.pattern_of[first]
            patterns = self.patterns[self.pattern_of[first] :][: int(indices[-1]) + 1]
            information = (patterns @ outer).view(-1, latent_dim, latent_dim)
            factor = torch.linalg.cholesky(information + eye)
            covariance = torch.cholesky_inverse(factor)[indices]
            log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)[indices]
            centred = self.x[rows] - self.observed[rows] * density.mean
            mean = (covariance @ (centred @ precise)[..., None])[..., 0]
            yield _Posterior(rows, centred, mean, covariance, log_det)
