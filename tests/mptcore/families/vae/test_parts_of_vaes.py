"""Likelihoods and networks by themselves, against direct computations."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mptcore.estimation.model import Evidence
from mptcore.families.vae import ais, likelihoods, networks
from mptcore.families.vae.ais import _by_chains
from mptcore.families.vae.conditionals import ConditionalEstimates, _regressed
from mptcore.families.vae.grid import GridVae
from mptcore.families.vae.importance import summary_of, weight_evidence
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from mptcore.families.vae.networks import Encoder
from mptcore.families.vae.proposal import HALF_TRUST_ESS, PRIOR_SHARE, Proposal
from mptcore.families.vae.run import collapse
from mptcore.families.vae.sampled import SampledVaeModel
from mptcore.families.vae.vae import divergence, log_prior, sample_posterior
from mptcore.protocol.records import Log, Metric
from mptcore.specs import Convolutional, Dense, UniformGrid

N, G, D = 4, 3, 5
LIKELIHOODS = [BernoulliLikelihood(), GaussianLikelihood(2.5)]


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


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


def test_a_pixel_that_no_node_expects_keeps_its_log_likelihood() -> None:
    """e^−800 is 0 in float64."""
    outputs = torch.tensor([[800.0, -800.0], [900.0, -900.0]], dtype=torch.float64)
    shares = torch.full((2, 2), math.log(0.5), dtype=torch.float64)
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    found = BernoulliLikelihood().mixed_log_probs(x, outputs, shares)
    assert found[0].tolist() == pytest.approx([math.log(0.5) - 800] * 2)
    assert found[1].tolist() == [0, 0]


def test_independent_outputs_give_the_mean_of_each_dimension() -> None:
    x = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    assert GaussianLikelihood(2.0).independent(x).tolist() == [0, 1, 0.5]
    bernoulli = BernoulliLikelihood()
    # 1 / (2 N) for constant pixels.
    assert bernoulli.mean(bernoulli.independent(x)).tolist() == pytest.approx([0.25, 0.75, 0.5])


def kinds(module: nn.Module) -> list[str]:
    return [type(one).__name__ for one in module.modules() if not list(one.children())]


def test_a_convolutional_network_has_an_activation_after_each_layer_but_the_last() -> None:
    spec = Convolutional(layers="convolutional", channels=(3, 5), width=7, activation="tanh")
    encoder, decoder = networks.convolutional(spec, 64, 2)
    down = ["Shaped", "Conv2d", "Tanh", "Conv2d", "Tanh", "Shaped", "Linear", "Tanh"]
    assert kinds(encoder.body) == down
    assert kinds(decoder.body) == ["Linear", "Tanh", "Linear", "Tanh"]
    up = ["Shaped", "ConvTranspose2d", "Tanh", "ConvTranspose2d", "Shaped"]
    assert kinds(decoder.last) == up
    transposed = [one for one in decoder.modules() if isinstance(one, nn.ConvTranspose2d)]
    assert [one.bias is None for one in transposed] == [False, True]
    assert [one.out_channels for one in transposed] == [3, 1]
    mean, log_variance = encoder(torch.zeros(2, 3, 64))
    assert mean.shape == log_variance.shape == (2, 3, 2)
    assert decoder(torch.zeros(2, 3, 2)).shape == (2, 3, 64)
    columns = torch.tensor([5, 1])
    z = normal(3, 2).float()
    assert torch.equal(decoder(z, columns), decoder(z)[:, columns])


def test_a_dense_network_goes_through_its_widths_and_back() -> None:
    spec = Dense(layers="dense", widths=(7, 4), activation="gelu")
    encoder, decoder = networks.dense(spec, 6, 2)
    linear = [(one.in_features, one.out_features) for one in encoder.modules()
              if isinstance(one, nn.Linear)]  # fmt: skip
    assert linear == [(6, 7), (7, 4), (4, 4)]
    linear = [(one.in_features, one.out_features) for one in decoder.modules()
              if isinstance(one, nn.Linear)]  # fmt: skip
    assert linear == [(2, 4), (4, 7), (7, 6)]
    assert kinds(encoder.body) == ["Linear", "GELU"] * 2
    z, columns = normal(3, 2).float(), torch.tensor([5, 1])
    assert torch.allclose(decoder(z, columns), decoder(z)[:, columns])


def test_an_encoders_variance_is_bounded() -> None:
    encoder = Encoder(nn.Identity(), 1, 1)
    with torch.no_grad():
        encoder.head.weight.copy_(torch.tensor([[1.0], [1.0]]))
        encoder.head.bias.zero_()
    mean, log_variance = encoder(torch.tensor([[-50.0], [2.0], [50.0]]))
    assert mean.flatten().tolist() == [-50, 2, 50]
    assert log_variance.flatten().tolist() == [-20, 2, 20]


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
    expected = distribution(vae.likelihood, decoder(drawn)).log_prob(x).sum(-1)
    assert torch.allclose(vae.elbo(x, noise), expected - divergence(mean, log_variance).sum(-1))


def test_doubtful_chains_add_nothing_to_the_error() -> None:
    """Few chains have an effective sample size that is not in doubt."""
    summary = summary_of((1 + 0.1 * normal(500, 40).abs()).log())
    summary.doubtful[7] = 1
    found = _by_chains([summary])
    assert found.std_err == weight_evidence([summary], advice="", doubtful_error=0.0).std_err < 0.01
    summary.doubtful[:] = 1
    assert str(_by_chains([summary]).not_final_reason).endswith(ais.ADVICE)


def test_a_dimension_is_active_above_its_bound() -> None:
    """A mean of 0.2 has a KL of 0.02 nats, one of 0.1 of 0.005."""
    encoder = Encoder(nn.Identity(), 1, 3)
    with torch.no_grad():
        encoder.head.weight.zero_()
        encoder.head.bias.copy_(torch.tensor([0.2, 0.1, 0.0, 0, 0, 0]))
    found = list(collapse(encoder, torch.zeros(5000, 1), {"seed": 1}))
    kl, active = found
    assert isinstance(kl, Metric)
    assert (kl.name, kl.std_err) == ("kl", 0)
    assert kl.value == pytest.approx(0.025)
    assert active == Metric("active_units", 1, 0.0, {"seed": 1})
    with torch.no_grad():
        encoder.head.bias.zero_()
    *_, warning = collapse(encoder, torch.zeros(5, 1), {"seed": 1, "objective": "elbo"})
    assert isinstance(warning, Log)
    assert warning.level == "warning"
    told = "collapse (seed 1, objective elbo): every latent dimension has a KL below 0.01 nats"
    assert warning.message.startswith(told)
    assert "train longer" in warning.message


def test_draws_of_a_posterior_have_its_mean_and_variance() -> None:
    mean, variance = torch.tensor([1.0, -2.0]), torch.tensor([4.0, 0.25])
    wide = mean.expand(40_000, 2), variance.log().expand(40_000, 2)
    z = sample_posterior(*wide, torch.Generator().manual_seed(1))
    error = (variance / 40_000).sqrt()
    assert ((z.mean(0) - mean) / error).abs().max() < 4
    assert (z.var(0) / variance - 1).abs().max() < 4 * math.sqrt(2 / 40_000)


def test_values_linear_in_rough_values_are_estimated_from_a_sample() -> None:
    rough = normal(50)
    chosen = torch.arange(0, 50, 5)
    found, error = _regressed(3 + rough[chosen] / 2, rough, chosen)
    assert torch.allclose(found, 3 + rough / 2)
    assert error < 1e-12


def proposal_of(observations: int) -> Proposal:
    """Proposal with a mode for each observation, next to the prior."""
    centres = torch.stack([normal(observations, 2), torch.zeros(observations, 2).double()])
    root = torch.tensor([[2.0, 0.5], [0.0, 1.0]], dtype=torch.float64)
    roots = torch.stack([root, torch.eye(2).double()])[:, None].repeat(1, observations, 1, 1)
    shares = torch.tensor([1 - PRIOR_SHARE, PRIOR_SHARE], dtype=torch.float64).log()
    return Proposal(centres, roots, shares[:, None].repeat(1, observations))


def test_a_proposal_that_is_refitted_to_its_own_draws_stays() -> None:
    given = proposal_of(10)
    z = given.draw(20_000, torch.Generator().manual_seed(1))
    found = given.refitted(z, torch.zeros(z.shape[:2]).double())
    assert torch.allclose(found.centres, given.centres, atol=0.05)
    assert torch.allclose(found.roots, given.roots, atol=0.1)
    assert torch.allclose(found.log_shares, given.log_shares)


def test_a_proposal_is_adapted_to_draws_as_far_as_they_are_many() -> None:
    """Between their covariance and that of the best mode."""
    given = proposal_of(3)
    z = 5 + normal(100, 3, 2, seed=4)
    found = given.adapted(z, torch.zeros(100, 3).double())
    assert torch.allclose(found.centres[0], z.mean(0))
    gaps = (z - z.mean(0)).transpose(0, 1)
    trust = 100 / (100 + HALF_TRUST_ESS)
    of_mode = torch.linalg.inv(given.roots[0].mT @ given.roots[0])
    expected = trust * gaps.mT @ gaps / 100 + (1 - trust) * of_mode
    assert torch.allclose(torch.linalg.inv(found.roots[0].mT @ found.roots[0]), expected)


def test_the_variance_of_a_score_is_that_of_the_mean_of_its_parts() -> None:
    def conditional(x: Tensor, *_: object) -> ConditionalEstimates:
        none = torch.zeros(len(x), D)
        return ConditionalEstimates(none, none, none[:, 0], torch.tensor(0.3))

    vae: Any = SimpleNamespace(
        conditional=conditional,
        conditionals=SimpleNamespace(draws=7),
        parts=lambda x, draws: torch.split(x, 2),
    )
    model = SampledVaeModel(vae, torch.zeros(5, D), 0, Evidence(0.0))
    *_, variance = model.sampled_scores(torch.ones(2, D, dtype=torch.bool), 0)
    assert variance.tolist() == pytest.approx([0.3 * (0.4**2 + 0.4**2 + 0.2**2)] * 2)
