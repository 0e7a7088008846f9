"""Annealed importance sampling, forwards and backwards, where the posterior is known."""

import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from mptcore.estimation.model import Evidence
from mptcore.families.vae import ais
from mptcore.families.vae.ais import ADVICE, AGREE, Annealing, _by_chains, compared
from mptcore.families.vae.importance import summary_of, weight_evidence
from mptcore.families.vae.proposal import Fit, Proposal
from mptcore.families.vae.sampled import SampledVae
from mptcore.runtime.state import Records
from mptcore.specs import Ais, Importance, Recursive
from tests.support.runs import result_of
from tests.support.vaes import density_of, linear_gaussian, normal, prior_of, simulated

N = 30


def exact_posterior(model: SampledVae, x: Tensor) -> Proposal:
    fit = Fit(model.decoder, model.likelihood, x, torch.ones_like(x))
    return fit.proposal(torch.zeros(len(x), model.latent_dim, dtype=x.dtype), 1)


def posterior_draws(about: Proposal, chains: int, generator: torch.Generator) -> Tensor:
    """(chains, N, K), where the posterior is normal."""
    centre, root = about.centres[0], about.roots[0]
    normal = torch.randn((*centre.shape, chains), generator=generator, dtype=centre.dtype)
    added = torch.linalg.solve_triangular(root, normal, upper=True)
    draws: Tensor = centre + added.permute(2, 0, 1)
    return draws


def annealing_of(
    chains: int, leapfrog_steps: int, temperatures: int = 10
) -> tuple[Annealing, Tensor, Tensor]:
    """Annealing with draws of the posterior (chains, N, K), and log p(x) (N,)."""
    model = linear_gaussian(Importance(method="importance"), exact=True)
    x, _ = simulated(model, N)
    generator = torch.Generator().manual_seed(5)
    spec = Ais(temperatures=temperatures, chains=chains, leapfrog_steps=leapfrog_steps)
    about = exact_posterior(model, x)
    # The fit is exact, so annealing from it would have nothing to do: twice as wide, and shifted.
    moved = Proposal(about.centres + 0.2, about.roots / 2, about.log_shares)
    annealing = Annealing(model, x, spec, moved, generator)
    return annealing, posterior_draws(about, chains, generator), density_of(model).log_prob(x)


def test_backward_weights_equal_forward_weights() -> None:
    """E[min(p/w, 1)] over backward chains from the posterior is E[min(w/p, 1)] over forward ones
    (Crooks 2000): of bounded means the error is known. That of p/w itself, one, has no variance: q
    has heavier tails than p, so that ten temperatures found 0.79 ± 0.06."""
    annealing, z, truth = annealing_of(chains=400, leapfrog_steps=2)
    result_of(annealing.tune())
    log_forward, log_backward = result_of(annealing.forward()), result_of(annealing.backward(z))
    assert log_forward.dtype == log_backward.dtype == torch.float64
    forward = (log_forward - truth).clamp(max=0).exp()
    backward = (log_backward + truth).clamp(max=0).exp()
    error = math.hypot(
        *((one.std() / math.sqrt(one.numel())).item() for one in (forward, backward))
    )
    assert error < 0.01
    assert forward.mean() < 0.95  # something is there to be found
    assert forward.mean().item() == pytest.approx(backward.mean().item(), abs=4 * error)


def test_a_transition_moves_although_a_trajectory_would_return() -> None:
    """A step of √2 turns a normal by a quarter: four of them end where they began, and a chain
    without jitter would stay for ever."""
    annealing, z, _ = annealing_of(chains=50, leapfrog_steps=4)
    annealing.root = 2 * annealing.root  # that of the posterior
    size = torch.full((N,), math.sqrt(2), dtype=z.dtype)
    moved, _ = annealing._transition(z, 1.0, size)
    assert (moved - z).norm(dim=-1).median() > 0.05


def test_a_transition_preserves_the_posterior() -> None:
    """Large steps, that are often refused: a jitter that knew of z would move it."""
    annealing, z, _ = annealing_of(chains=2000, leapfrog_steps=4)
    size = torch.full((N,), 0.85, dtype=z.dtype)

    def moments(at: Tensor) -> Tensor:
        gaps = annealing.root @ (at - annealing.proposal.centres[0] + 0.2)[..., None]
        squares = gaps.square().sum((-1, -2))
        return torch.stack([squares.sqrt(), squares, squares**2]).mean(1)

    before = moments(z)
    for _ in range(12):
        z, acceptance = annealing._transition(z, 1.0, size)
        assert 0.2 < acceptance.mean() < 0.9
    drift = moments(z) / before - 1  # (3, N)
    error = drift.std(1) / math.sqrt(N)
    assert (drift.mean(1) / error).abs().max() < 4
    assert error.max() < 0.03


class Recorded:
    """Replaces an annealing: it records the z with which its observations were drawn."""

    backward_of: ClassVar[list[tuple[Tensor, Tensor]]] = []

    def __init__(self, model: SampledVae, x: Tensor, *_: object) -> None:
        self.x = x

    def tune(self) -> Records[None]:
        yield from ()

    def forward(self) -> Records[Tensor]:
        yield from ()
        return torch.zeros(8, len(self.x))

    def backward(self, z: Tensor) -> Records[Tensor]:
        self.backward_of.append((self.x, z))
        return (yield from self.forward())


def test_reverse_chains_start_at_the_latent_values_of_the_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = linear_gaussian(Importance(method="importance"), exact=True)
    x, _ = simulated(model, 5)
    z = torch.arange(5.0)[:, None].expand(5, model.latent_dim)
    monkeypatch.setattr(Recorded, "backward_of", [])
    monkeypatch.setattr(ais, "Annealing", Recorded)
    monkeypatch.setattr(SampledVae, "parts", lambda self, x, draws: torch.split(x, 2))
    work = ais._both_ways(model, x, z, Ais(temperatures=10), torch.Generator())
    forward, backward = result_of(work)
    assert [len(part.log_mean) for part in forward] == [2, 2, 1]
    assert len(backward) == 3
    parts, drawn_with = zip(*Recorded.backward_of, strict=True)
    assert torch.equal(torch.cat(parts), x)
    assert torch.equal(torch.cat(drawn_with), z)


@pytest.mark.slow
def test_annealing_brackets_the_lml() -> None:
    """Forward from below, backward from above (Grosse et al. 2015), both within their errors; that
    of the backward chains, which share their start, is the spread over observations."""
    model = linear_gaussian(Recursive(method="recursive"), exact=True)
    x, z = simulated(model, 40)
    truths = density_of(model).log_prob(x)
    for proposal in (
        model.evidence_proposal(x, 100, torch.Generator(), is_thorough=True),
        prior_of(x),
    ):
        near = len(proposal.log_shares) > 2
        spec = Ais(temperatures=30 if near else 300, chains=8, leapfrog_steps=4)
        annealing = Annealing(model, x, spec, proposal, torch.Generator().manual_seed(5))
        result_of(annealing.tune())
        below = weight_evidence([summary_of(result_of(annealing.forward()))], advice="")
        assert below.value == pytest.approx(truths.mean().item(), abs=4 * below.std_err)
        gaps = -summary_of(result_of(annealing.backward(z))).log_mean - truths
        error = gaps.std().item() / math.sqrt(len(x))
        assert error < (0.05 if near else 0.2)
        assert gaps.mean().item() == pytest.approx(0, abs=4 * error)


def test_doubtful_chains_add_nothing_to_the_error() -> None:
    """Few chains have an effective sample size that is not in doubt."""
    summary = summary_of((1 + 0.1 * normal(500, 40).abs()).log())
    summary.doubtful[7] = 1
    found = _by_chains([summary])
    assert found.std_err == weight_evidence([summary], advice="", doubtful_error=0.0).std_err < 0.01
    summary.doubtful[:] = 1
    assert str(_by_chains([summary]).not_final_reason).endswith(ais.ADVICE)


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
