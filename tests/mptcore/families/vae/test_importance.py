"""Diagnostics of importance weights, and estimates that the weights do not support."""

import math

import pytest
import torch
from arviz_stats.base.array import array_stats
from torch import Tensor

from benchmarks.calibration.vae import Case
from mptcore.families.vae import importance
from mptcore.families.vae.importance import (
    Sampler,
    doubtful,
    khats,
    summary_of,
    weight_evidence,
)
from mptcore.families.vae.proposal import Fit, Proposal
from mptcore.families.vae.sampled import SampledVae
from mptcore.specs import Importance, Recursive
from tests.support.vaes import N, density_of, linear_gaussian, simulated


def uniform(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("draws", [25, 40, 226, 500, 2000])
@pytest.mark.parametrize("scale", [0.001, 0.3, 1.0, 5.0, 40.0])
def test_khats_equal_those_of_a_reference_library(draws: int, scale: float) -> None:
    log_weights = -scale * uniform(draws, 2, 3).log()
    found = khats(log_weights)
    assert found.shape == (2, 3)
    expected = array_stats.psislw(-log_weights.numpy(), axis=0)[1]  # type: ignore[no-untyped-call]
    assert found.numpy() == pytest.approx(expected, abs=1e-10)


def test_khats_of_weights_without_a_tail() -> None:
    assert khats(torch.zeros(500, 2)).tolist() == [0, 0]
    assert khats(uniform(24, 2).log()).tolist() == [0, 0]  # of too few
    broken = uniform(500, 3).log()
    broken[3, 1] = math.nan
    assert khats(broken).isinf().tolist() == [False, True, False]
    alone = torch.full((500, 1), -1e4, dtype=torch.float64)
    alone[7] = 0.0
    assert doubtful(alone).tolist() == [1]


def test_weights_with_a_heavy_tail_are_doubtful() -> None:
    """1/U has a tail of k = 1, and no variance; its inverse is bounded. A standard error needs an
    effective sample size, too."""
    draws = uniform(500, 40)
    assert khats(-draws.log()).mean() > 0.8
    assert khats(draws.log()).mean() < 0.1
    assert doubtful(-draws.log()).mean() > 0.7
    assert doubtful(draws.log()).sum() == 0
    assert doubtful(8 * draws[:20]).mean() > 0.9  # too few for a tail: by their effective size
    assert doubtful(torch.tensor([[math.nan], [0.0]]).expand(2, 3)).tolist() == [1, 1, 1]
    assert doubtful(draws[:1].log()).mean() == 1  # of one draw nothing is known


def test_no_correction_if_a_single_draw_has_all_the_weight() -> None:
    """Twice the whole less the halves was 500 nats above it: one half holds the draw, the other
    has a mean of e^−1000."""
    log_weights = torch.full((100, 1), -1000.0, dtype=torch.float64)
    log_weights[3] = 0.0
    found = summary_of(log_weights)
    assert found.debiased.item() == pytest.approx(-math.log(100))
    assert found.log_mean.item() == pytest.approx(-math.log(100))
    assert found.doubtful.item() == 1
    assert found.bias.item() < -400  # by the halves, as it is unknown


def test_the_jackknife_by_hand_for_draws_that_do_not_divide_by_four() -> None:
    """Seven draws: groups of 2, 2, 2 and 1."""
    weights = 1 + 0.1 * uniform(7, 1)
    found = summary_of(weights.log())
    first, second = weights[:4].mean().log(), weights[4:].mean().log()
    parts = [weights[0:2], weights[2:4], weights[4:6], weights[6:]]
    quarters = torch.stack([part.mean().log() for part in parts]).mean()
    better = 2 * weights.mean().log() - (first + second) / 2
    worse = first + second - quarters
    assert found.debiased.item() == pytest.approx(better.item(), abs=1e-14)
    assert found.bias.item() == pytest.approx((worse - better).item() / 3, abs=1e-14)
    assert summary_of(torch.zeros(7, 1)).debiased.item() == 0


def test_doubtful_weights_enter_the_error() -> None:
    """One of 40 may be wrong by a nat: this adds 0.025 to an error of 0.0002 from the draws."""
    summary = summary_of((1 + 0.1 * uniform(500, 40)).log())
    sure = weight_evidence([summary], advice="").std_err
    assert 0 < sure < 0.001
    summary.doubtful[7] = 1
    doubted = weight_evidence([summary], advice="")
    assert doubted.metrics["doubtful"] == 1 / 40
    assert doubted.std_err == pytest.approx(math.hypot(sure, 1 / 40), rel=1e-12)
    assert doubted.not_final_reason is None


def test_doubtful_weights_are_drawn_again(
    monkeypatch: pytest.MonkeyPatch, several_modes: Case
) -> None:
    """The proposal is refitted to the draws. The posteriors are bent, with several modes, and one
    in fifteen is in doubt at first."""
    case = several_modes
    found = {}
    for retries in (0, importance.RETRIES):
        monkeypatch.setattr(importance, "RETRIES", retries)
        parts = [
            case.vae.log_marginals(case.x, 200, torch.Generator().manual_seed(seed))
            for seed in range(10)
        ]
        found[retries] = [weight_evidence([part], advice="") for part in parts]
    first, again = ([one.metrics["doubtful"] for one in runs] for runs in found.values())
    assert sum(first) / 10 > 0.05
    assert sum(again) < sum(first) / 2
    truth = case.truth.evidence().value
    z = torch.tensor([(one.value - truth) / one.std_err for one in found[importance.RETRIES]])
    assert z.mean().abs() < 4 / math.sqrt(len(z))


def test_an_estimate_is_judged_by_other_draws(
    monkeypatch: pytest.MonkeyPatch, several_modes: Case
) -> None:
    """Only trial draws decide which observations get more draws. If the draws of the estimate
    decided, the other observations would be those without a large weight."""
    case = several_modes

    def none(self: Sampler, proposal: Proposal, draws: int) -> Tensor:
        return torch.zeros(len(self.fit.x), dtype=torch.bool)

    monkeypatch.setattr(Sampler, "refit_unreliable", none)
    found = case.vae.log_marginals(case.x, 200, torch.Generator().manual_seed(1))
    assert found.doubtful.sum() > 0
    assert found.trial_doubtful.sum() == 0  # in the trials, all weights were reliable


def test_only_trial_draws_decide_whether_an_lml_is_final(several_modes: Case) -> None:
    """Otherwise runs would be final because they missed a large weight, and be too low. The trial
    of observations with unreliable weights is drawn again, as often as the estimate."""
    case = several_modes
    trials, own = [], []
    for seed in range(20):
        found = case.vae.log_marginals(case.x, 50, torch.Generator().manual_seed(seed))
        trials.append(found.trial_doubtful)
        own.append(found.doubtful)
    trial, of_estimate = torch.stack(trials), torch.stack(own)
    assert 0 < trial.mean() < of_estimate.mean()
    assert (trial > of_estimate).any()
    assert (trial < of_estimate).any()


def test_an_lml_that_its_own_draws_alone_doubt_is_final() -> None:
    """Their doubt enters the error."""
    weights = (1 + 0.1 * uniform(500, 10)).log()
    weights[:, :3] = -0.9 * uniform(500, 3).log()  # Pareto's distribution with k = 0.9
    sure = weight_evidence([summary_of(weights, torch.zeros(10))], advice="")
    assert sure.not_final_reason is None
    assert sure.metrics["doubtful"] == pytest.approx(0.3)
    assert sure.std_err >= 0.3
    unsure = weight_evidence([summary_of(weights)], advice="")
    assert unsure.not_final_reason is not None
    assert "30% of its terms" in unsure.not_final_reason


def log_weights_of(model: SampledVae, x: Tensor, samples: int, draws: torch.Generator) -> Tensor:
    """Return log p(x, z) − log q(z) for z of a proposal q fitted to each observation, (samples,
    N)."""
    proposal = model.evidence_proposal(x, samples, draws, is_thorough=False)
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
