"""Random draws, the starts of a fit and comparisons of estimates, each by itself."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.estimation.model import Evidence
from mptcore.families.vae.ais import ADVICE, AGREE, compared
from mptcore.families.vae.conditionals import _regressed
from mptcore.families.vae.likelihoods import GaussianLikelihood
from mptcore.families.vae.proposal import LIKELIEST, Fit, prior_starts
from mptcore.families.vae.sampled import SampledVae
from mptcore.runtime.rng import draw_normal, draw_uniform
from tests.mptcore.families.vae.test_modes import relu_vae


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_have_the_precision_of_the_data(dtype: torch.dtype) -> None:
    like = torch.zeros(1, dtype=dtype)
    drawn, uniform = (draw((3, 1000), like, seeded()) for draw in (draw_normal, draw_uniform))
    assert drawn.dtype == uniform.dtype == dtype
    assert drawn.shape == uniform.shape == (3, 1000)
    assert drawn.min() < 0
    assert 0 <= uniform.min() < 0.01
    assert 0.99 < uniform.max() < 1


def fit_of(decoder: Any, x: Tensor) -> Fit:
    return Fit(decoder, GaussianLikelihood(100.0), x, torch.ones_like(x))


def test_the_second_start_is_at_the_other_mode() -> None:
    """The decoding is |z|, so that 1 and −1 are equally likely. All starts are likely ones."""
    x = torch.ones(20, 1, dtype=torch.float64)
    starts = prior_starts(fit_of(Tensor.abs, x), 1, 4, seeded())
    assert starts.shape == (4, 20, 1)
    assert torch.all(starts[0] * starts[1] < 0)
    assert torch.all((starts.abs() - 1).abs() < 0.2)
    one = prior_starts(fit_of(Tensor.abs, x), 1, 1, seeded())
    assert torch.all((one.abs() - 1).abs() < 1 / LIKELIEST)  # the likeliest
    assert prior_starts(fit_of(Tensor.abs, x), 1, 0, seeded()).shape == (0, 20, 1)


def test_every_second_start_reaches_the_tails_of_the_prior() -> None:
    x = torch.full((1, 1), 8.0, dtype=torch.float64)
    starts = prior_starts(fit_of(Tensor.abs, x), 1, 4, seeded()).abs().flatten()
    assert starts[[0, 2]].max() < 4 < starts[[1, 3]].min()


def test_the_smaller_half_of_the_starts_is_drawn_about_the_encoders_mean() -> None:
    x, mean = torch.ones(7, 2).double(), torch.full((7, 2), 100.0).double()
    vae: Any = SimpleNamespace(latent_dim=2)
    starts = SampledVae._random_starts(vae, fit_of(Tensor.abs, x), mean, 5, seeded())
    assert [bool(one.min() > 50) for one in starts] == [False, False, False, True, True]
    assert not torch.equal(starts[3], starts[4])


def test_the_error_of_a_choice_is_that_of_a_sample_without_replacement() -> None:
    """Rough values that are all equal tell nothing, and a sample of all has no error."""
    values, chosen = torch.arange(10.0).double() ** 2, torch.arange(0, 50, 5)
    found, error = _regressed(values, torch.ones(50).double(), chosen)
    expected = torch.full((50,), values.mean().item()).double()
    expected[chosen] = values
    assert torch.allclose(found, expected)
    scatter = (values - values.mean()).square().sum().item() / 8
    assert error.item() == pytest.approx(scatter / 10 * (1 - 10 / 50))
    _, none = _regressed(values, torch.ones(10).double(), torch.arange(10))
    assert none == 0


def test_the_lower_of_two_estimates_that_disagree_is_not_final() -> None:
    """It keeps a reason of its own."""
    gap = AGREE * 5.0  # their errors together are 5
    of_chains, of_weights = Evidence(0.0, 3.0), Evidence(-gap, 4.0)
    assert compared(of_chains, of_weights) == (of_chains, of_weights)
    _, below = compared(of_chains, Evidence(-gap - 0.1, 4.0))
    assert "annealing finds more" in (below.not_final_reason or "")
    below, other = compared(Evidence(-gap - 0.1, 3.0), Evidence(0.0, 4.0))
    assert (below.not_final_reason or "").endswith(ADVICE)
    assert other.not_final_reason is None
    below, _ = compared(Evidence(-gap - 0.1, 3.0, "its own"), Evidence(0.0, 4.0))
    assert below.not_final_reason == "its own"


def test_a_sampled_vae_has_no_closed_form() -> None:
    vae = relu_vae([[1.0]], [0.0], [[1.0]], 1.0)
    with pytest.raises(NotImplementedError, match=r"^it has no closed form: the spec lets lml"):
        vae.log_marginal(torch.zeros(1, 1))
