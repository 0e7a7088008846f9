"""Likelihoods of decoders' outputs, against direct computations."""

import math

import pytest
import torch
from torch import Tensor

from mptcore.families.vae import likelihoods
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from tests.support.vaes import normal

N, G, D = 4, 3, 5


LIKELIHOODS = [BernoulliLikelihood(), GaussianLikelihood(2.5)]


def data(likelihood: Likelihood) -> Tensor:
    x = normal(N, D, seed=1)
    return (x > 0).to(x) if isinstance(likelihood, BernoulliLikelihood) else x


def distribution(likelihood: Likelihood, outputs: Tensor) -> torch.distributions.Distribution:
    if isinstance(likelihood, BernoulliLikelihood):
        return torch.distributions.Bernoulli(logits=outputs)
    return torch.distributions.Normal(outputs, 1 / math.sqrt(2.5))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_likelihood_is_that_of_its_distribution(likelihood: Likelihood) -> None:
    x, outputs = data(likelihood), normal(N, D).requires_grad_()
    expected = distribution(likelihood, outputs)
    log_prob = likelihood.log_prob(x, outputs)
    assert torch.allclose(log_prob, expected.log_prob(x))
    (slope,) = torch.autograd.grad(log_prob.sum(), outputs)
    assert torch.allclose(likelihood.slope(x, outputs), slope)
    assert torch.allclose(likelihood.mean(outputs), expected.mean)
    drawn = likelihood.sample(outputs.expand(20_000, N, D), torch.Generator().manual_seed(0))
    assert torch.allclose(drawn.mean(0), expected.mean, atol=0.03)
    assert torch.allclose(drawn.var(0), expected.variance, atol=0.03)
    squares = likelihood.slope(drawn, outputs).square().mean(0)  # E slope² is the information
    assert torch.allclose(likelihood.information(outputs), squares, rtol=0.1)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("observed", ["all", "alike", "each"])
def test_a_likelihood_at_nodes_sums_the_observed_dimensions(
    likelihood: Likelihood, observed: str
) -> None:
    x, outputs = data(likelihood), normal(G, D, seed=2)
    masks = {"all": None, "alike": torch.arange(D) % 2, "each": torch.arange(N * D).view(N, D) % 3}
    mask = masks[observed]
    given = None if mask is None else (mask > 0).to(x)
    each = likelihood.log_prob(x[:, None], outputs)  # (N, G, D)
    weight = torch.ones(1, D) if given is None else given.view(-1, D)
    expected = (each * weight[:, None]).sum(-1)
    assert torch.allclose(likelihood.node_log_probs(x, outputs, given), expected)


@pytest.mark.parametrize("chunk", [likelihoods.CHUNK, 2 * N * G])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_mixture_of_nodes_is_the_log_of_the_mean_likelihood(
    likelihood: Likelihood, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihoods, "CHUNK", chunk)
    x, outputs = data(likelihood), normal(G, D, seed=2)
    shares = normal(N, G, seed=3).log_softmax(-1)
    each = likelihood.log_prob(x[:, None], outputs)
    expected = (shares[..., None] + each).logsumexp(1)
    assert torch.allclose(likelihood.mixed_log_probs(x, outputs, shares), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_pixel_that_no_node_expects_keeps_its_log_likelihood(dtype: torch.dtype) -> None:
    """e^−800 is 0 in float64, and e^−800 and its gradient in float32 too."""
    outputs = torch.tensor([[800.0, -800.0], [900.0, -900.0]], dtype=dtype, requires_grad=True)
    shares = torch.full((2, 2), math.log(0.5), dtype=dtype)
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=dtype)
    log_probs = BernoulliLikelihood().mixed_log_probs(x, outputs, shares)
    assert log_probs[0].tolist() == pytest.approx([math.log(0.5) - 800] * 2)
    assert log_probs[1].tolist() == [0, 0]
    log_probs.sum().backward()  # type: ignore[no-untyped-call]
    assert outputs.grad is not None
    assert outputs.grad[0].tolist() == pytest.approx([-1, 1])  # the likelier of both nodes
    assert outputs.grad[1].tolist() == pytest.approx([0, 0])


def test_independent_outputs_give_the_mean_of_each_dimension() -> None:
    x = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    assert GaussianLikelihood(2.0).independent(x).tolist() == [0, 1, 0.5]
    bernoulli = BernoulliLikelihood()
    # 1 / (2 N) for constant pixels.
    assert bernoulli.mean(bernoulli.independent(x)).tolist() == pytest.approx([0.25, 0.75, 0.5])
