"""The prior and the ELBO of a VAE, and the ascent of an objective."""

import math

import pytest
import torch
from torch import Tensor, nn

from mptcore.families.vae import networks
from mptcore.families.vae.grid import GridVae
from mptcore.families.vae.likelihoods import GaussianLikelihood
from mptcore.families.vae.vae import ascend, divergence, log_prior, sample_posterior
from mptcore.specs import Recursive, UniformGrid
from tests.support.vaes import N, linear_gaussian, normal, ppca_of, simulated


def test_the_bound_and_its_parts_are_those_of_normal_distributions() -> None:
    mean, log_variance, z = normal(4, 2), normal(4, 2, seed=1), normal(4, 2, seed=2)
    posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
    prior = torch.distributions.Normal(torch.zeros(2).double(), 1.0)
    gap = torch.distributions.kl_divergence(posterior, prior)
    assert torch.allclose(divergence(mean, log_variance), gap)
    assert torch.allclose(log_prior(z), prior.log_prob(z).sum(-1))  # type: ignore[no-untyped-call]
    encoder, decoder = networks.linear(5, 2)
    grid = UniformGrid(method="uniform_grid", nodes=2)
    vae = GridVae(encoder, decoder, GaussianLikelihood(2.5), 2, grid).double()
    x, noise = normal(4, 5), normal(4, 2, seed=3)
    mean, log_variance = encoder(x)
    drawn = mean + (log_variance / 2).exp() * noise
    outputs = torch.distributions.Normal(decoder(drawn), 2.5**-0.5)
    expected = outputs.log_prob(x).sum(-1)  # type: ignore[no-untyped-call]
    assert torch.allclose(vae.elbo(x, noise), expected - divergence(mean, log_variance).sum(-1))


def test_draws_of_a_posterior_have_its_mean_and_variance() -> None:
    mean, variance = torch.tensor([1.0, -2.0]), torch.tensor([4.0, 0.25])
    wide = mean.expand(40_000, 2), variance.log().expand(40_000, 2)
    z = sample_posterior(*wide, torch.Generator().manual_seed(1))
    error = (variance / 40_000).sqrt()
    assert ((z.mean(0) - mean) / error).abs().max() < 4
    assert (z.var(0) / variance - 1).abs().max() < 4 * math.sqrt(2 / 40_000)


def test_the_elbo_is_below_the_lml_and_equal_for_the_exact_posterior() -> None:
    draws = torch.Generator().manual_seed(1)
    for exact in (True, False):
        model = linear_gaussian(Recursive(method="recursive"), exact=exact)
        x, _ = simulated(model, N)
        truth = ppca_of(model, x).log_marginal_likelihood()
        with torch.no_grad():
            found = torch.stack([model.elbo(x, model.normal(x, draws)).mean() for _ in range(200)])
        error = found.std().item() / math.sqrt(len(found))
        if exact:
            assert found.mean().item() == pytest.approx(truth, abs=4 * error)
        else:
            assert found.mean().item() < truth - 0.1


def test_an_ascent_restarts_if_its_second_part_does_not_fit_in_memory() -> None:
    """The repeated step uses nothing of the first part, and the same draws as at first."""
    x, module = torch.arange(12.0).view(6, 2), nn.Linear(2, 1, bias=False)
    seen: list[int] = []
    begun: list[int] = []

    def objective(some: Tensor) -> Tensor:
        seen.append(len(some))
        if len(some) > 3 or len(seen) == 3:
            raise torch.OutOfMemoryError
        found: Tensor = module(some).mean()
        return found

    value = ascend(objective, (x,), module, lambda: begun.append(len(seen)))
    assert seen == [6, 3, 3, 2, 1, 2, 1]
    assert begun == [0, 1, 3]
    assert value.item() == pytest.approx(module(x).mean().item())
    torch.testing.assert_close(module.weight.grad, -x.mean(0)[None])
