"""Factor analysis by EM."""

import pytest
import torch
from sklearn.decomposition import FactorAnalysis

from mptcore.families.linear_gaussian.factor_analysis import maximum_likelihood
from mptcore.families.linear_gaussian.moments import second_moment
from mptcore.families.linear_gaussian.ppca import maximum_likelihood as ppca_maximum_likelihood
from mptcore.protocol.records import RunError


def sample() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    loadings = torch.randn(8, 2, generator=generator, dtype=torch.float64)
    latent = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(500, 8, generator=generator, dtype=torch.float64)
    return latent @ loadings.mT + noise * torch.linspace(0.3, 2, 8, dtype=torch.float64) + 5


def test_em_reaches_the_likelihood_of_scikit_learn() -> None:
    x = sample()
    density = maximum_likelihood(second_moment(x, x.mean(0)), x.mean(0), 2)
    reference = FactorAnalysis(2, tol=1e-10, max_iter=10_000, svd_method="lapack").fit(x)
    assert density.log_prob(x).mean().item() >= reference.score(x.numpy()) - 1e-6


def test_it_fits_better_than_ppca_where_noise_differs() -> None:
    x = sample()
    moment = second_moment(x, x.mean(0))
    own = maximum_likelihood(moment, x.mean(0), 2).log_prob(x).mean()
    simpler = ppca_maximum_likelihood(moment, x.mean(0), 2).log_prob(x).mean()
    assert own > simpler + 0.1


def test_constant_columns_are_named() -> None:
    x = sample()
    x[:, 3] = 1.0
    with pytest.raises(RunError, match="columns 3 are constant"):
        maximum_likelihood(second_moment(x, x.mean(0)), x.mean(0), 2)
