"""Densities before any training or iteration: drawn, given, loaded, or PPCA's closed form (the
paper, Sec. 3.1 and App. B; Tipping & Bishop 1999)."""

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.moments import data_factor, second_moment
from mptcore.families.linear_gaussian.weights import load_density
from mptcore.protocol.records import RunError
from mptcore.specs import LinearGaussianSpec, PpcaModel

EPSILON = torch.finfo(torch.float64).eps
MIN_SHARE_OF_LARGEST = 1e-6
"""Eigenvalue as a share of the largest up to which the data give more digits than their covariance.
Above it the error, ε times the largest, is at most 1e-9 of the eigenvalue."""
NEGLIGIBLE_SHARE = 1e-12
"""Share of a column's variance that rounding of the data may add to exact combinations of others.
"""


def initial_density(
    spec: LinearGaussianSpec, data: Dataset, seed: int, generator: torch.Generator
) -> LowRankGaussian:
    """Return the density of a spec that needs no iterations, in float64 on the CPU; `fit.py` has
    the others. Raises RunError if the likelihood has no maximum."""
    match spec.init:
        case "generator":
            assert data.parameters is not None, "the spec's check lets only simulated data through"
            return LowRankGaussian(**data.parameters)
        case "random":
            return random_density(spec, data, generator)
        case "maximum_likelihood":
            assert isinstance(spec, PpcaModel), "factor analysis has no closed form"
            mean = data.x.double().mean(0)
            moment = second_moment(data.x, mean)
            return closed_form(moment, mean, spec.latent_dim, spec.noise_precision, data.x)
        case "experiment":
            return load_density(spec, data.dim, seed)
        case _:
            assert_never(spec.init)


def random_density(
    spec: LinearGaussianSpec, data: Dataset, generator: torch.Generator
) -> LowRankGaussian:
    """Draw W from N(0, 1). Use the mean of the data and the noise precision of the spec."""
    assert spec.noise_precision is not None, "the spec's check asks for a number"
    loadings = torch.randn(data.dim, spec.latent_dim, generator=generator).double()
    variance = torch.full((data.dim,), 1 / spec.noise_precision, dtype=torch.float64)
    return LowRankGaussian(loadings, data.mean, variance)


def closed_form(
    covariance: Tensor,  # (D, D)
    mean: Tensor,  # (D,)
    latent_dim: int,
    noise_precision: float | None = None,
    x: Tensor | None = None,  # (N, D)
) -> LowRankGaussian:
    """Return the PPCA with the highest likelihood for data with this mean and covariance (divided
    by N).

    W = U_K (Λ_K − s2 I)^½ from the leading eigenpairs, s2 the mean of the others, or the given one
    (Tipping & Bishop 1999, Eqs. 7 and 8). Where eigenvalues that matter are lost in the rounding of
    the largest, as for columns in very different units, they are computed from the data `x`, if
    given. Raises RunError if s2 is zero, because the likelihood is then unbounded."""
    spectrum = Spectrum.of_covariance(covariance)
    needed = spectrum.leading(latent_dim)[-1] if noise_precision else spectrum.beyond(latent_dim)
    if x is not None and needed < MIN_SHARE_OF_LARGEST * spectrum.values[0]:
        spectrum = Spectrum.of_data(x, mean)
    if noise_precision:
        variance = 1 / noise_precision
    elif spectrum.has_rank(latent_dim, covariance.diagonal()):
        raise RunError(
            "invalid",
            f"the data have no variance beyond {latent_dim} dimensions, so the likelihood has no "
            "maximum: lower latent_dim or give a noise_precision",
        )
    else:
        variance = float(spectrum.beyond(latent_dim))
    scale = (spectrum.leading(latent_dim) - variance).clamp(min=0).sqrt()
    noise = torch.full_like(mean, variance)
    return LowRankGaussian(spectrum.vectors[:, :latent_dim] * scale, mean, noise)


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of a covariance and its eigenvectors, the largest first."""

    values: Tensor  # (D,)
    vectors: Tensor  # (D, D)
    rounding: float
    """Error of an eigenvalue near 0."""

    @classmethod
    def of_covariance(cls, covariance: Tensor) -> "Spectrum":  # (D, D)
        """Decompose a covariance, with errors of about D ε times the largest eigenvalue."""
        values, vectors = torch.linalg.eigh(covariance)  # ascending
        rounding = len(values) * EPSILON * float(values[-1])
        return cls(values.flip(0), vectors.flip(1), rounding)

    @classmethod
    def of_data(cls, x: Tensor, mean: Tensor) -> "Spectrum":  # (N, D), (D,)
        """Decompose the covariance by the singular values of the centred data. Their errors are D ε
        times the largest, so an eigenvalue is known down to the square of D ε, not D ε, times the
        largest."""
        factor = data_factor(x, mean)  # (D, min(N, D))
        vectors, singular, _ = torch.linalg.svd(factor, full_matrices=True)
        values = torch.nn.functional.pad(singular.square(), (0, len(factor) - len(singular)))
        return cls(values, vectors, float((len(factor) * EPSILON * singular[0]).square()))

    def leading(self, rank: int) -> Tensor:  # (rank,)
        return self.values[:rank]

    def beyond(self, rank: int) -> Tensor:  # ()
        """Return the mean of the eigenvalues after the first `rank`."""
        return self.values[rank:].mean()

    def has_rank(self, rank: int, variances: Tensor) -> bool:  # (D,)
        """Return whether the first `rank` dimensions explain every column up to rounding errors and
        NEGLIGIBLE_SHARE of its variance. Columns are compared with themselves, since one column's
        variance may be far below the rounding error of another's."""
        residual = self.vectors[:, rank:].square() @ self.values[rank:].clamp(min=0)  # (D,)
        return bool((residual <= NEGLIGIBLE_SHARE * variances + self.rounding).all())
