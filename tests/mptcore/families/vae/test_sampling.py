"""VAEs by sampling, on a linear Gaussian decoder, where the truth is known."""

import math
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from benchmarks.calibration.vae import CASES, Case, metrics_of, true_score
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.families.linear_gaussian.moments import moment_of
from mptcore.families.linear_gaussian.routes import moment_solver
from mptcore.families.linear_gaussian.solver import Solver
from mptcore.families.vae.ais import Annealing
from mptcore.families.vae.importance import Sampler, summary_of, weight_evidence
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood
from mptcore.families.vae.networks import convolutional, dense, linear, linearised
from mptcore.families.vae.proposal import Fit, Proposal
from mptcore.families.vae.sampled import Plan, SampledVae
from mptcore.specs import Ais, Convolutional, Dense, Importance, Recursive
from tests.support.runs import result_of, std_err_of, value_of

DIM, LATENT_DIM, PRECISION, N = 12, 2, 4.0, 40


@cache
def case_of(name: str) -> Case:
    """A case of the calibration; its truth by quadrature takes a second."""
    return CASES[name]()


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


def ppca_of(model: SampledVae, x: Tensor) -> Solver:
    assert isinstance(model.decoder.last, nn.Linear)
    noise = torch.full((DIM,), 1 / PRECISION, dtype=torch.float64)
    mean = model.decoder.last.bias.detach()
    density = LowRankGaussian(model.decoder.last.weight.detach(), mean, noise)
    return moment_solver(
        density.loadings, density.noise_variance, moment_of(x, mean, 1 / PRECISION)
    )


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


def errors_of(
    model: SampledVae, masks: Tensor, x: Tensor, truth: Tensor, spread: float = 0.02
) -> Tensor:
    """Return the deviation of the scores of masks from the truth, in standard errors of 8 repeats,
    and check that their spread is below a bound."""
    draws = torch.Generator().manual_seed(11)
    found = torch.stack(
        [
            torch.stack([model.conditional(x, mask, draws).log_probs.mean() for mask in masks])
            for _ in range(8)
        ]
    )
    assert found.std(0).max() < spread
    return (found - truth).mean(0) / (found.std(0) / math.sqrt(len(found)))


def test_importance_sampling_reaches_the_true_conditionals(masks: Tensor) -> None:
    """Use a wrong encoder; the first mask hides all dimensions."""
    model = linear_gaussian(Importance(method="importance"), exact=False)
    x, _ = simulated(model, N)
    assert errors_of(model, masks, x, ppca_of(model, x).scores(masks)).abs().max() < 4


@pytest.mark.parametrize(
    "name", ["linear Bernoulli, D = 16, K = 2", "tanh Gaussian, D = 16, K = 2"]
)
def test_conditionals_and_evidence_are_those_of_a_fine_grid(name: str) -> None:
    case = case_of(name)
    masks = torch.rand(2, 16, generator=torch.Generator().manual_seed(3)) < 0.5
    assert errors_of(case.vae, masks, case.x, case.truth.scores(masks), 0.05).abs().max() < 4
    evidence = result_of(case.vae.evidence(case.x, torch.Generator().manual_seed(1)))
    assert evidence.value == pytest.approx(case.truth.evidence().value, abs=4 * evidence.std_err)
    assert evidence.std_err < 0.01


def test_the_defaults_are_right_where_the_posterior_is_narrow() -> None:
    """D = 64, K = 4, an encoder that was never trained: the recursion and draws from its posterior
    were 20 and 40 nats below (and said 0.6)."""
    case = case_of("linear Gaussian, D = 64, K = 4")
    runs = [metrics_of(case.vae, case.x, case.mask_size, seed) for seed in range(2)]
    lml = torch.tensor([value_of(run["lml"]) for run in runs])
    assert (lml - case.truth.evidence().value).abs().max() < 0.05
    gaps = torch.tensor([value_of(run["biased_score"]) for run in runs]) - true_score(case)
    errors = torch.tensor([std_err_of(run["biased_score"]) for run in runs])
    assert (gaps / errors).mean().abs() < 4 / math.sqrt(len(runs))
    assert errors.max() < 1


def test_recursion_is_exact_with_an_exact_encoder(masks: Tensor) -> None:
    """The logarithm of a mean of n draws has a bias of about 1/n. Twice the value from 2 n draws
    minus the value from n draws has none."""
    model = linear_gaussian(Recursive(method="recursive"), exact=True)
    x, _ = simulated(model, N)
    draws = torch.Generator().manual_seed(11)
    found = []
    for _ in range(10):
        both = []
        for n in (25, 50):
            model.conditionals = Recursive(method="recursive", draws=n, rounds=20)
            scores = [model.conditional(x, mask, draws).log_probs.mean() for mask in masks]
            both.append(torch.stack(scores))
        found.append(2 * both[1] - both[0] - ppca_of(model, x).scores(masks))
    gaps = torch.stack(found)
    assert (gaps.mean(0) / (gaps.std(0) / math.sqrt(len(gaps)))).abs().max() < 4


def test_recursion_fails_with_few_rounds_and_a_wrong_encoder(masks: Tensor) -> None:
    model = linear_gaussian(Recursive(method="recursive", draws=300, rounds=1), exact=False)
    x, _ = simulated(model, N)
    assert errors_of(model, masks, x, ppca_of(model, x).scores(masks))[2:].max() < -8


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


def log_weights_of(model: SampledVae, x: Tensor, samples: int, draws: torch.Generator) -> Tensor:
    """Return log p(x, z) − log q(z) for z of a proposal q fitted to each observation, (samples,
    N)."""
    proposal = model.evidence_proposal(x, samples, draws, is_final=False)
    fit = Fit(model.decoder, model.likelihood, x, torch.ones_like(x), shared_mask=True)
    return Sampler(fit, model.rows(1), draws).draw(proposal, samples)[1]


def test_the_jackknife_removes_the_bias_of_few_draws() -> None:
    """The mean over many observations and repeats: below the truth without it."""
    model = linear_gaussian(Importance(method="importance"), exact=False)
    x, _ = simulated(model, N)
    truth = density_of(model).log_prob(x)
    draws = torch.Generator().manual_seed(1)
    found = [summary_of(log_weights_of(model, x, 16, draws)) for _ in range(200)]
    raw = torch.stack([one.log_mean for one in found]) - truth
    corrected = torch.stack([one.debiased for one in found]) - truth
    error = raw.std().item() / math.sqrt(raw.numel())
    assert raw.mean().item() < -5 * error
    assert abs(corrected.mean().item()) < 4 * error
    left = torch.stack([one.bias for one in found]).mean().item()
    assert abs(left) < 4 * error


def test_the_error_of_the_evidence_is_calibrated() -> None:
    model = linear_gaussian(Recursive(method="recursive"), exact=False)
    x, _ = simulated(model, 5)
    truth = density_of(model).log_prob(x).mean().item()
    draws = torch.Generator().manual_seed(1)
    found = [
        weight_evidence([summary_of(log_weights_of(model, x, 100, draws))], advice="")
        for _ in range(200)
    ]
    z = torch.tensor([(one.value - truth) / one.std_err for one in found])
    assert z.mean().abs() < 4 / math.sqrt(len(z))
    assert 0.85 < z.std() < 1.15


@pytest.mark.slow
def test_annealing_brackets_the_lml() -> None:
    """Forward from below, backward from above (Grosse et al. 2015), both within their errors; that
    of the backward chains, which share their start, is the spread over observations."""
    model = linear_gaussian(Recursive(method="recursive"), exact=True)
    x, z = simulated(model, N)
    truths = density_of(model).log_prob(x)
    for proposal in (
        model.evidence_proposal(x, 100, torch.Generator(), is_final=True),
        prior_of(x),
    ):
        near = len(proposal.log_shares) > 2
        spec = Ais(temperatures=30 if near else 300, chains=8, leapfrog_steps=4)
        annealing = Annealing(model, x, spec, proposal, torch.Generator().manual_seed(5))
        result_of(annealing.tune())
        below = weight_evidence([summary_of(result_of(annealing.forward()))], advice="")
        assert below.value == pytest.approx(truths.mean().item(), abs=4 * below.std_err)
        gaps = -summary_of(result_of(annealing.backward(z))).log_mean - truths
        error = gaps.std().item() / math.sqrt(N)
        assert error < (0.05 if near else 0.2)
        assert gaps.mean().item() == pytest.approx(0, abs=4 * error)


def prior_of(x: Tensor) -> Proposal:
    """A proposal that knows nothing of x."""
    identity = torch.eye(LATENT_DIM).double().expand(2, len(x), LATENT_DIM, LATENT_DIM)
    zero = x.new_zeros(2, len(x), LATENT_DIM)
    return Proposal(zero, identity, torch.full_like(zero[..., 0], math.log(0.5)))


@pytest.mark.parametrize("outputs", [BernoulliLikelihood(), GaussianLikelihood(2.0)])
@pytest.mark.parametrize(
    "layers",
    [
        Dense(layers="dense", widths=(7, 5)),
        Convolutional(layers="convolutional", channels=(3, 4), width=6),
    ],
    ids=lambda layers: layers.layers,
)
def test_decoding_some_columns_equals_decoding_all(
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
    values, slopes = linearised(decoder, z[0])
    assert torch.allclose(values, decoder(z[0]), atol=1e-6)
    for i in range(5):
        expected = torch.func.jacrev(lambda one: decoder(one[None])[0])(z[0, i])
        assert torch.allclose(slopes[i], expected.T, atol=1e-5)
    mask = torch.zeros(64, dtype=torch.bool)
    mask[::3] = True
    model.score(x, mask[None], torch.Generator()).backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in encoder.parameters())
    assert all(p.grad is not None for p in decoder.parameters())


@pytest.mark.parametrize("shared_mask", [True, False])
def test_a_fit_expands_about_the_values_before_the_last_layer(shared_mask: bool) -> None:
    """The expansion is that of the outputs, for observations that have the same mask or not."""
    _, decoder = dense(Dense(layers="dense", widths=(6,), activation="tanh"), 20, 3)
    decoder = decoder.double().requires_grad_(False)
    x, z = torch.rand(5, 20).double(), torch.randn(5, 3).double()
    observed = (torch.rand(5, 20) < 0.6).double()
    observed = observed[:1].repeat(5, 1) if shared_mask else observed
    fit = Fit(decoder, GaussianLikelihood(7.0), x, observed, shared_mask)
    assert (fit._information is not None) == shared_mask
    found = fit._quadratic(z, fit.x, fit.observed)
    outputs, jacobian = linearised(decoder, z)
    seen = 7.0 * fit.observed
    slope = (jacobian @ (seen * (x - outputs))[..., None])[..., 0] - z
    curvature = torch.eye(3) + (jacobian * seen[:, None]) @ jacobian.mT
    torch.testing.assert_close(found.gradient, slope, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.curvature, curvature, rtol=1e-10, atol=1e-10)


def test_a_fit_to_a_linear_decoder_is_exact_in_one_step() -> None:
    model = linear_gaussian(Importance(method="importance"), exact=True)
    x, _ = simulated(model, N)
    with torch.no_grad():
        mean, log_variance = model.encoder(x)
        fit = Fit(model.decoder, model.likelihood, x, torch.ones_like(x))
        found = fit.proposal(torch.full_like(mean, 5.0), 1)
    assert torch.allclose(found.centres[0], mean, atol=1e-10)
    scale = torch.cholesky_inverse(found.roots[0].mT)
    assert torch.allclose(scale, torch.diag_embed(log_variance.exp()), atol=1e-10)


def test_a_fit_ends_at_a_mode_and_does_not_depend_on_other_observations() -> None:
    case = case_of("tanh Gaussian, D = 16, K = 2")
    observed = (torch.rand(case.x.shape, generator=torch.Generator().manual_seed(1)) < 0.6).double()
    start = 2 * torch.randn(10, 2, generator=torch.Generator().manual_seed(2)).double()
    vae = case.vae
    found = Fit(vae.decoder, vae.likelihood, case.x, observed).proposal(start, 100).centres[0]
    z = found.detach().requires_grad_()
    log_probs = vae.likelihood.log_prob(case.x, vae.decoder(z)) * observed
    (slope,) = torch.autograd.grad(log_probs.sum() - z.square().sum() / 2, z)
    curvature = Fit(vae.decoder, vae.likelihood, case.x, observed).proposal(found, 1).roots[0]
    distance = torch.linalg.solve_triangular(curvature.mT, slope[..., None], upper=False)
    assert distance.norm(dim=1).max() < 0.05  # in standard deviations of the posterior
    one = Fit(vae.decoder, vae.likelihood, case.x[3:4], observed[3:4]).proposal(start[3:4], 100)
    assert torch.allclose(one.centres[0, 0], found[3], atol=1e-10)


def test_a_proposal_has_the_density_it_draws_from() -> None:
    """Its mean weight against a normal that it covers is one; adapted, too."""
    case = case_of("tanh Gaussian, D = 16, K = 2")
    draws = torch.Generator().manual_seed(1)
    found = case.vae.evidence_proposal(case.x, 100, draws, is_final=True)
    for proposal in (found, prior_of(case.x)):
        z = proposal.draw(20_000, draws)
        weights = (-z.square().sum(-1) / 2 - math.log(2 * math.pi) - proposal.log_prob(z)).exp()
        error = weights.std(0) / math.sqrt(len(weights))
        assert ((weights.mean(0) - 1) / error).abs().max() < 4
    assert len(found.log_shares) == 8  # five modes, two pilots, and the prior


def test_a_training_step_has_the_gradient_of_the_true_conditional() -> None:
    """Compare with log p(x) − log p(x_R) from dense normal densities, in the biases of a linear
    decoder. Biases of observed dimensions change only the weights."""
    method = Importance(method="importance", train_draws=4000)
    model = linear_gaussian(method, exact=False)
    x, _ = simulated(model, 3)
    mask = torch.arange(DIM) == 4
    model.score(x, mask[None], torch.Generator().manual_seed(1)).backward()  # type: ignore[no-untyped-call]
    last = model.decoder.last
    assert isinstance(last, nn.Linear)
    bias, loadings = last.bias.detach().clone().requires_grad_(), last.weight.detach()
    covariance = loadings @ loadings.T + torch.eye(DIM) / PRECISION

    def log_prob(kept: Tensor) -> Tensor:
        own = torch.distributions.MultivariateNormal(bias[kept], covariance[kept][:, kept])
        found: Tensor = own.log_prob(x[:, kept])  # type: ignore[no-untyped-call]
        return found.mean()

    whole = torch.ones_like(mask)
    (expected,) = torch.autograd.grad(log_prob(whole) - log_prob(~mask), bias)
    assert expected[~mask].abs().max() > 0.1
    assert last.bias.grad is not None
    assert (last.bias.grad - expected).abs().max() < 0.05


def test_a_proposal_does_not_see_what_is_masked() -> None:
    """Otherwise the region that the proposal misses would make the conditionals too high."""
    case = case_of("tanh Gaussian, D = 16, K = 2")
    masked = torch.arange(16) % 2 == 0
    other = torch.where(masked, case.x + 1, case.x)
    first, second = (
        case.vae.proposal(x, masked, Plan(20, (50,)), torch.Generator().manual_seed(1))
        for x in (case.x, other)
    )
    assert torch.equal(first.centres, second.centres)
    assert torch.equal(first.roots, second.roots)
    assert not torch.equal(
        case.vae.proposal(
            other, ~masked, Plan(20, (50,)), torch.Generator().manual_seed(1)
        ).centres,
        first.centres,
    )
