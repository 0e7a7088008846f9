"""VAEs by sampling, on a linear Gaussian decoder, where the truth is known."""

import math

import pytest
import torch
from torch import Tensor, nn

from mptcore.families.linear_gaussian.conditionals import LinearGaussianModel
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.families.linear_gaussian.moments import moment_of
from mptcore.families.vae.ais import Annealing
from mptcore.families.vae.importance import summary_of, weight_evidence
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood
from mptcore.families.vae.networks import convolutional, dense, linear
from mptcore.families.vae.sampled_vae import SampledVae
from mptcore.specs import Ais, Convolutional, Dense, Importance, Recursive
from tests.support.runs import result_of

DIM, LATENT_DIM, PRECISION, N = 12, 2, 4.0, 40


def put(parameter: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value)


def linear_gaussian(conditionals: Recursive | Importance, *, exact: bool) -> SampledVae:
    """Orthogonal loadings, so that the posterior has independent dimensions; the encoder is that
    posterior, or twice as wide and shifted."""
    draws = torch.Generator().manual_seed(2)
    basis = torch.linalg.qr(torch.randn(DIM, LATENT_DIM, generator=draws, dtype=torch.float64)).Q
    loadings = basis * torch.tensor([2.0, 1.0])
    encoder, decoder = linear(DIM, LATENT_DIM)
    model = SampledVae(
        encoder, decoder, GaussianLikelihood(PRECISION), LATENT_DIM, conditionals, DIM
    ).double()
    assert isinstance(decoder.last, nn.Linear)
    put(decoder.last.weight, loadings)
    put(decoder.last.bias, torch.linspace(-1, 1, DIM))
    variance = 1 / (1 + PRECISION * loadings.square().sum(0))
    gain = PRECISION * variance[:, None] * loadings.T
    spread = torch.zeros(LATENT_DIM, dtype=torch.float64)
    if not exact:
        gain, spread = gain * 0.8, spread + math.log(4)
    put(encoder.head.weight, torch.cat([gain, torch.zeros_like(gain)]))
    shift = -gain @ decoder.last.bias.detach()
    put(encoder.head.bias, torch.cat([shift, variance.log() + spread]))
    return model


def ppca_of(model: SampledVae, x: Tensor) -> LinearGaussianModel:
    assert isinstance(model.decoder.last, nn.Linear)
    noise = torch.full((DIM,), 1 / PRECISION, dtype=torch.float64)
    mean = model.decoder.last.bias.detach()
    density = LowRankGaussian(model.decoder.last.weight.detach(), mean, noise)
    return LinearGaussianModel(density, moment_of(x, mean, 1 / PRECISION))


def density_of(model: SampledVae) -> torch.distributions.Distribution:
    assert isinstance(model.decoder.last, nn.Linear)
    mean, loadings = model.decoder.last.bias.detach(), model.decoder.last.weight.detach()
    noise = torch.full((DIM,), 1 / PRECISION, dtype=torch.float64)
    return torch.distributions.LowRankMultivariateNormal(mean, loadings, noise)


def simulated(model: SampledVae, n: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(7)
    z = torch.randn(n, LATENT_DIM, generator=draws, dtype=torch.float64)
    with torch.no_grad():
        return model.likelihood.sample(model.decoder(z), draws), z


@pytest.fixture(scope="module")
def masks() -> Tensor:
    found = torch.rand(4, DIM, generator=torch.Generator().manual_seed(3)) < 0.5
    found[0], found[1] = True, False
    found[1, 4] = True
    return found


def errors_of(model: SampledVae, masks: Tensor) -> Tensor:
    """How far scores are from the truth, in standard errors of 20 repeats. A logarithm of a mean of
    n draws is biased by about 1/n: what twice the draws give, twice, less what n give is not."""
    x, _ = simulated(model, N)
    truth = ppca_of(model, x).scores(masks)
    once = model.conditionals
    twice = once.model_copy(update={"draws": 2 * once.draws})
    draws = torch.Generator().manual_seed(11)
    found = []
    with torch.no_grad():
        for _ in range(20):
            both = []
            for model.conditionals in (once, twice):
                values = [model.conditional(x, mask, draws).log_probs.mean() for mask in masks]
                both.append(torch.stack(values))
            found.append(2 * both[1] - both[0] - truth)
    gaps = torch.stack(found)
    assert gaps.std(0).max() < 0.02
    return gaps.mean(0) / (gaps.std(0) / math.sqrt(len(gaps)))


def test_importance_sampling_reaches_the_true_conditionals(masks: Tensor) -> None:
    """With a wrong encoder, and with nothing observed (the first mask) too."""
    model = linear_gaussian(Importance(method="importance", draws=1000), exact=False)
    assert errors_of(model, masks).abs().max() < 4


def test_recursion_reaches_them_where_the_encoder_is_exact(masks: Tensor) -> None:
    model = linear_gaussian(Recursive(method="recursive", draws=300, rounds=20), exact=True)
    assert errors_of(model, masks).abs().max() < 4


def test_few_rounds_and_a_wrong_encoder_do_not(masks: Tensor) -> None:
    model = linear_gaussian(Recursive(method="recursive", draws=300, rounds=1), exact=False)
    assert errors_of(model, masks)[2:].max() < -8


def test_the_elbo_is_below_the_lml_and_equal_for_the_exact_posterior() -> None:
    draws = torch.Generator().manual_seed(1)
    for exact in (True, False):
        model = linear_gaussian(Recursive(method="recursive"), exact=exact)
        x, _ = simulated(model, N)
        truth = ppca_of(model, x).log_marginal_likelihood()
        with torch.no_grad():
            found = torch.stack([model.elbo(x, draws).mean() for _ in range(200)])
        error = found.std().item() / math.sqrt(len(found))
        if exact:
            assert found.mean().item() == pytest.approx(truth, abs=4 * error)
        else:
            assert found.mean().item() < truth - 0.1


def test_iwae_reaches_the_lml_from_below() -> None:
    model = linear_gaussian(Recursive(method="recursive"), exact=False)
    x, _ = simulated(model, N)
    truth = ppca_of(model, x).log_marginal_likelihood()
    draws = torch.Generator().manual_seed(1)
    found = {
        k: weight_evidence([summary_of(model.log_weights(x, k, draws))], cure="")
        for k in (2, 20, 2000)
    }
    assert found[2].value < found[20].value < truth + 4 * found[20].std_err
    assert found[2000].value == pytest.approx(truth, abs=4 * found[2000].std_err)
    assert found[2000].std_err < 0.01
    assert 100 < found[2000].metrics["ess"] < 2000


def test_the_error_of_iwae_is_calibrated() -> None:
    model = linear_gaussian(Recursive(method="recursive"), exact=False)
    x, _ = simulated(model, 5)
    draws = torch.Generator().manual_seed(1)
    found = [
        weight_evidence([summary_of(model.log_weights(x, 400, draws))], cure="") for _ in range(200)
    ]
    values = torch.tensor([one.value for one in found])
    errors = torch.tensor([one.std_err for one in found])
    assert 0.85 < (values.std() / errors.mean()).item() < 1.15


def test_annealing_brackets_the_lml() -> None:
    """Forward from below, backward from above (Grosse et al. 2015), both within their errors; that
    of the backward chains, which share their start, is the spread over observations."""
    model = linear_gaussian(Recursive(method="recursive"), exact=True)
    x, z = simulated(model, N)
    truths = density_of(model).log_prob(x)
    truth = truths.mean().item()
    spec = Ais(temperatures=300, chains=8, leapfrog_steps=4)
    annealing = Annealing(model, x, spec, torch.Generator().manual_seed(5))
    result_of(annealing.tune())
    below = weight_evidence([summary_of(result_of(annealing.forward()))])
    assert below.value == pytest.approx(truth, abs=4 * below.std_err)
    gaps = -summary_of(result_of(annealing.backward(z))).log_mean - truths
    error = gaps.std().item() / math.sqrt(N)
    assert error < 0.2
    assert gaps.mean().item() == pytest.approx(0, abs=4 * error)
    coarse = Annealing(model, x, spec.model_copy(update={"temperatures": 5}), annealing.generator)
    result_of(coarse.tune())
    assert summary_of(result_of(coarse.forward())).log_mean.mean().item() < truth
    assert -summary_of(result_of(coarse.backward(z))).log_mean.mean().item() > truth


@pytest.mark.parametrize("outputs", [BernoulliLikelihood(), GaussianLikelihood(2.0)])
@pytest.mark.parametrize(
    "layers",
    [
        Dense(layers="dense", widths=(7, 5)),
        Convolutional(layers="convolutional", channels=(3, 4), width=6),
    ],
    ids=lambda layers: layers.layers,
)
def test_networks_decode_a_column_as_they_decode_all(
    layers: Dense | Convolutional, outputs: BernoulliLikelihood | GaussianLikelihood
) -> None:
    if isinstance(layers, Dense):
        encoder, decoder = dense(layers, 64, 3)
    else:
        encoder, decoder = convolutional(layers, 64, 3)
    model = SampledVae(encoder, decoder, outputs, 3, Recursive(method="recursive", draws=3), 99)
    x = (torch.rand(5, 64) < 0.5).float()
    mean, log_variance = model.encoder(x)
    assert mean.shape == log_variance.shape == (5, 3)
    z = torch.randn(2, 5, 3)
    columns = torch.tensor([3, 60])
    assert torch.allclose(decoder(z)[..., columns], decoder(z, columns), atol=1e-6)
    mask = torch.zeros(64, dtype=torch.bool)
    mask[::3] = True
    model.score(x, mask[None], torch.Generator()).backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in encoder.parameters())
    assert all(p.grad is not None for p in decoder.parameters())
