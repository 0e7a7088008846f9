"""Factor analysis by EM."""

from typing import Any

import pytest
import torch
from sklearn.decomposition import FactorAnalysis

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian.factor_analysis import (
    maximum_likelihood,
    refuse_constant_columns,
)
from mptcore.families.linear_gaussian.moments import second_moment
from mptcore.families.linear_gaussian.ppca import maximum_likelihood as ppca_maximum_likelihood
from mptcore.protocol.records import RunError
from mptcore.run import run
from tests.support.runs import spec_of


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


FITTED = {"family": "factor_analysis", "latent_dim": 2, "init": "maximum_likelihood"}
STARTED = {**FITTED, "init": "random", "noise_precision": 1.0}
LEARNED = {"epochs": 1, "learn_noise_precision": True}


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"model": FITTED}, True),
        ({"model": {**FITTED, "family": "ppca"}, "baseline": FITTED}, True),
        ({"model": STARTED, "train": LEARNED}, True),
        ({"model": {**STARTED, "family": "ppca"}, "train": LEARNED}, False),
        ({"model": STARTED, "train": {"epochs": 1}}, False),
    ],
)
def test_a_noise_variance_of_a_constant_column_is_not_estimated(
    changes: dict[str, Any], refused: bool
) -> None:
    """Digits have black borders, on which all else works."""
    masks = {"schedule": "sizes", "sizes": [1], "per_size": 1}
    spec = spec_of({"data": {"source": "digits"}, "evaluate": {"masks": masks}, **changes})
    if not refused:
        assert [*run(spec)]
        return
    with pytest.raises(RunError, match=r"^columns 0, 32, 39 are constant \(counted from 0\)"):
        [*run(spec)]


def test_nearly_constant_columns_are_fitted() -> None:
    """Beside columns of other units."""
    x = sample() * torch.tensor([1e-7, 1e7] * 4, dtype=torch.float64)
    refuse_constant_columns(Dataset(x))
    density = maximum_likelihood(second_moment(x, x.mean(0)), x.mean(0), 2)
    alike = sample()
    scaled = maximum_likelihood(second_moment(alike, alike.mean(0)), alike.mean(0), 2)
    logs = density.log_prob(x).mean().item(), scaled.log_prob(alike).mean().item()
    assert logs[0] == pytest.approx(logs[1], abs=1e-4)
