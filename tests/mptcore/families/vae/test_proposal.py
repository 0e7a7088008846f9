"""Proposals for z: their fits, their starts, the modes that are found and those that are kept."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mptcore.families.vae.likelihoods import GaussianLikelihood
from mptcore.families.vae.networks import dense, linearised
from mptcore.families.vae.proposal import (
    EVEN_SHARE,
    HALF_TRUST_ESS,
    LIKELIEST,
    MAX_MODES,
    PRIOR_SHARE,
    Fit,
    Modes,
    Proposal,
    poorly_predicted,
    prior_starts,
)
from mptcore.families.vae.sampled import Plan, SampledVae
from mptcore.specs import Dense, Importance
from tests.support.runs import result_of
from tests.support.vaes import (
    PRECISION,
    N,
    case_of,
    linear_gaussian,
    normal,
    prior_of,
    relu_vae,
    seeded,
    simulated,
)

PLAN = Plan(20, (50,))


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
    found = case.vae.evidence_proposal(case.x, 100, draws, is_thorough=True)
    for proposal in (found, prior_of(case.x)):
        z = proposal.draw(20_000, draws)
        weights = (-z.square().sum(-1) / 2 - math.log(2 * math.pi) - proposal.log_prob(z)).exp()
        error = weights.std(0) / math.sqrt(len(weights))
        assert ((weights.mean(0) - 1) / error).abs().max() < 4
    assert len(found.log_shares) == 8  # five modes, two pilots, and the prior


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


def test_starts_are_the_likeliest_of_prior_draws() -> None:
    """The likelihood uses only the observed dimensions."""
    generator = torch.Generator().manual_seed(1)
    model = linear_gaussian(Importance(method="importance"), exact=False)
    seen, _ = simulated(model, 20)
    fit = model._fit(seen, torch.arange(12) < 3)
    starts = prior_starts(fit, 2, 3, generator)
    prior = torch.randn(1000, 20, 2, generator=generator, dtype=torch.float64)
    better = [
        model.likelihood.log_prob(seen, model.decoder(z))[..., 3:].sum(-1) for z in (starts, prior)
    ]
    assert starts.shape == (3, 20, 2)
    assert (better[0][0] > better[1].quantile(0.95, dim=0)).all()
    assert (better[0][2] > better[1].quantile(0.88, dim=0)).all()  # of the likeliest 16 of 256
    assert not torch.equal(starts[0], starts[1])


def test_the_smaller_half_of_the_starts_is_drawn_about_the_encoders_mean() -> None:
    x, mean = torch.ones(7, 2).double(), torch.full((7, 2), 100.0).double()
    vae: Any = SimpleNamespace(latent_dim=2)
    starts = SampledVae._random_starts(vae, fit_of(Tensor.abs, x), mean, 5, seeded())
    assert [bool(one.min() > 50) for one in starts] == [False, False, False, True, True]
    assert not torch.equal(starts[3], starts[4])


def test_a_masked_value_20_nats_off_the_mean_surprises() -> None:
    """Observed values, and other observations, do not count."""
    model = linear_gaussian(Importance(method="importance"), exact=False)
    z = torch.zeros(5, 2, dtype=torch.float64)
    x = model.decoder(z).detach().clone()
    away = math.sqrt(2 * 20 / PRECISION)
    x[1, 3] += 1.01 * away
    x[2, 3] -= 0.99 * away
    x[3, 4] += 9 * away
    masked = torch.arange(12) == 3
    found = poorly_predicted(model._fit(x, masked), masked, z)
    assert found.tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("noise_precision", [400.0, 10_000.0])
def test_all_four_modes_are_found(noise_precision: float) -> None:
    """Each dimension is proportional to |z_1|, |z_2| or their sum, so (±z_1, ±z_2) are equally
    likely."""
    signs = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    outputs = [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    vae = relu_vae(signs, [0.0] * 4, outputs, noise_precision)
    draws = torch.Generator().manual_seed(1)
    z = torch.randn(50, 2, generator=draws, dtype=torch.float64)
    z = z.sign() * (z.abs() + 0.5)
    with torch.no_grad():
        x = vae.likelihood.sample(vae.decoder(z), draws)
    found = vae.proposal(x, None, PLAN, draws)
    centres, shares = found.centres[1:-1], found.log_shares[1:-1].exp()  # the first is adapted
    quadrants = 2 * (centres[..., 0] > 0) + (centres[..., 1] > 0)
    near = ((centres.abs() - z.abs()).norm(dim=-1) < 0.5) & (shares > 0.01)
    each = [(near & (quadrants == quadrant)).any(0) for quadrant in range(4)]
    assert torch.stack(each).sum() > 3.6 * 50


def test_a_mode_in_the_tail_of_the_prior_is_found() -> None:
    """The decoding falls from 1 at z = 0 and rises to 1.2 at z = 4. At x = 1.1 nearly all of the
    mass lies near 3.83 and 4.17."""
    slopes = [[-0.5, -0.5, 1.1, -1.2, 1.0]] * 3
    vae = relu_vae([[1.0], [-1.0], [1.0], [1.0], [0.0]], [0.0, 0.0, 2.0, 4.0, -1.0], slopes, 1e4)
    x = torch.full((20, 3), 1.1, dtype=torch.float64)
    found = vae.proposal(x, None, PLAN, torch.Generator().manual_seed(1))
    near = (found.centres[1:-1, :, 0] - 4).abs() < 0.3
    assert (near & (found.log_shares[1:-1].exp() > 0.01)).any(0).all()


def wavy_vae(noise_precision: float) -> SampledVae:
    """Return a VAE whose decoder has large random weights: posteriors have several modes, and five
    starts at times miss the heaviest."""
    rng = np.random.default_rng(3)
    width, dim, latent_dim = 16, 3, 2
    weights = [
        (2 * rng.normal(size=(width, latent_dim)), 0.5 * rng.normal(size=width)),
        (rng.normal(size=(dim, width)), 0.3 * rng.normal(size=dim)),
    ]
    torch.manual_seed(3)
    networks = dense(Dense(layers="dense", widths=(width,), activation="tanh"), dim, latent_dim)
    likelihood, method = GaussianLikelihood(noise_precision), Importance(method="importance")
    vae = SampledVae(*networks, likelihood, latent_dim, method, width).double()
    layers = [part for part in vae.decoder.modules() if isinstance(part, nn.Linear)]
    with torch.no_grad():
        for layer, (weight, bias) in zip(layers, weights, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    return vae


def log_marginals_by_quadrature(vae: SampledVae, x: torch.Tensor, nodes: int) -> torch.Tensor:
    """Return log p(x) of each observation from a grid of nodes² values of z."""
    line = torch.linspace(-7, 7, nodes, dtype=torch.float64)
    total = torch.full((len(x),), -math.inf, dtype=torch.float64)
    for part in torch.split(line, 100):
        z = torch.cartesian_prod(part, line)
        with torch.no_grad():
            outputs = vae.decoder(z)
        log_probs = vae.likelihood.node_log_probs(x, outputs, torch.ones_like(x))  # (N, G)
        log_prior = -z.square().sum(-1) / 2 - math.log(2 * math.pi)
        total = torch.logaddexp(total, (log_probs + log_prior).logsumexp(-1))
    return total + 2 * (line[1] - line[0]).log()


def test_a_final_lml_misses_no_mode() -> None:
    """With five starts two in a hundred observations lost their main mode, by up to 50 nats, and no
    weight showed it."""
    vae = wavy_vae(400.0)
    draws = torch.Generator().manual_seed(7)
    with torch.no_grad():
        z = torch.randn(20, 2, generator=draws, dtype=torch.float64)
        x = vae.likelihood.sample(vae.decoder(z), draws)
    truth = log_marginals_by_quadrature(vae, x, 1501)
    lost = {}
    for is_thorough in (False, True):
        gaps = torch.stack(
            [
                vae.log_marginals(
                    x, 200, torch.Generator().manual_seed(seed), is_thorough=is_thorough
                ).debiased
                - truth
                for seed in range(10)
            ]
        )
        lost[is_thorough] = int((gaps < -1).sum())
    assert lost[False] > 0
    assert lost[True] == 0
    evidence = result_of(vae.evidence(x, torch.Generator().manual_seed(1)))
    assert abs(evidence.value - truth.mean()) < 4 * evidence.std_err


def modes_at(places: list[float], log_mass: list[float]) -> Modes:
    """Return the modes of one observation on a line, each of standard deviation 1."""
    roots = torch.ones(len(places), 1, 1, 1)
    return Modes(torch.tensor(places)[:, None, None], roots, torch.tensor(log_mass)[:, None])


def test_a_mode_counts_once() -> None:
    """Three climbs end at 0, two at 10, one at 20. The heaviest climb represents each mode."""
    modes = modes_at([0.0, 0.2, 10.0, 20.0, 0.1, 10.0], [1.0, 1.1, 0.0, -1.0, 0.5, 0.0])
    masses = torch.tensor([1.1, 0.0, -1.0]).exp()
    assert modes.unseen_mass().item() == pytest.approx((masses[2] / masses.sum()).item())
    proposal = modes.proposal()
    kept = proposal.log_shares[:-1, 0].exp() > 0
    places = proposal.centres[:-1, 0, 0][kept]
    assert places.tolist() == pytest.approx([0.2, 10.0, 20.0])
    shares = (1 - EVEN_SHARE) * masses / masses.sum() + EVEN_SHARE / 3
    assert torch.allclose(
        proposal.log_shares[:-1, 0][kept].exp(), (1 - PRIOR_SHARE) * shares, atol=1e-6
    )
    assert proposal.log_shares.exp().sum().item() == pytest.approx(1)
    assert modes_at([0.0, 0.5, 0.3], [0.0, 0.0, 0.0]).unseen_mass().item() == 0
    assert modes_at([0.0, 5.0], [0.0, 0.0]).unseen_mass().item() == pytest.approx(1)


def test_further_climbs_are_counted() -> None:
    """Modes found again no longer count as found once, and new modes are added."""
    first, further = modes_at([0.0, 5.0], [0.0, 0.0]), modes_at([5.1, 9.0], [0.0, 0.0])
    joined = first.joined(further)
    assert joined.unseen_mass().item() == pytest.approx(2 / 3)
    assert joined.of(torch.tensor([0])).unseen_mass().item() == pytest.approx(2 / 3)
    assert (joined.proposal().log_shares[:-1] > -math.inf).sum() == 3


def test_a_light_mode_keeps_a_share_and_the_lightest_are_dropped() -> None:
    """Laplace's approximation gives the second a mass of e⁻³⁰; there may be much more there."""
    light = modes_at([0.0, 10.0], [0.0, -30.0]).proposal().log_shares[:2, 0].exp()
    assert light[1].item() == pytest.approx((1 - PRIOR_SHARE) * EVEN_SHARE / 2)
    assert light[1].item() > 0.05
    many = modes_at([10.0 * i for i in range(8)], [-float(i) for i in range(8)]).proposal()
    assert many.centres[:-1, 0, 0].tolist() == [10.0 * i for i in range(MAX_MODES)]
