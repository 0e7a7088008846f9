"""Modes of the posteriors of sampled VAEs: which are found, and which a proposal keeps."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from mptcore.families.vae.likelihoods import GaussianLikelihood
from mptcore.families.vae.networks import dense
from mptcore.families.vae.proposal import EVEN_SHARE, MAX_MODES, PRIOR_SHARE, Modes
from mptcore.families.vae.sampled import Plan, SampledVae
from mptcore.specs import Dense, Importance
from tests.support.runs import result_of

PLAN = Plan(20, (50,))


def relu_vae(
    first: list[list[float]], kinks: list[float], last: list[list[float]], noise_precision: float
) -> SampledVae:
    """Return a VAE with the decoder last · relu(first · z − kinks) and a random encoder."""
    torch.manual_seed(3)
    networks = dense(
        Dense(layers="dense", widths=(len(kinks),), activation="relu"), len(last), len(first[0])
    )
    method = Importance(method="importance")
    likelihood = GaussianLikelihood(noise_precision)
    vae = SampledVae(*networks, likelihood, len(first[0]), method, len(kinks)).double()
    inner = next(part for part in vae.decoder.modules() if isinstance(part, nn.Linear))
    with torch.no_grad():
        inner.weight.copy_(torch.tensor(first))
        inner.bias.copy_(-torch.tensor(kinks))
        vae.decoder.last.get_parameter("weight").copy_(torch.tensor(last))
        vae.decoder.last.bias.zero_()
    return vae


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
    for is_final in (False, True):
        gaps = torch.stack(
            [
                vae.log_marginals(
                    x, 200, torch.Generator().manual_seed(seed), is_final=is_final
                ).debiased
                - truth
                for seed in range(10)
            ]
        )
        lost[is_final] = int((gaps < -1).sum())
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
