"""VAEs by sampling, on a linear Gaussian decoder, where the truth is known."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.calibration.vae import metrics_of, true_score
from mptcore.estimation.model import Evidence
from mptcore.families.vae.conditionals import ConditionalEstimates
from mptcore.families.vae.sampled import SampledVae, SampledVaeModel
from mptcore.specs import Importance, Recursive
from tests.support.runs import result_of, std_err_of, value_of
from tests.support.vaes import (
    DIM,
    PRECISION,
    N,
    case_of,
    linear_gaussian,
    ppca_of,
    relu_vae,
    simulated,
)


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


def test_the_variance_of_a_score_is_that_of_the_mean_of_its_parts() -> None:
    def conditional(x: Tensor, *_: object) -> ConditionalEstimates:
        none = torch.zeros(len(x), DIM)
        return ConditionalEstimates(none, none, none[:, 0], torch.tensor(0.3))

    vae: Any = SimpleNamespace(
        conditional=conditional,
        conditionals=SimpleNamespace(draws=7),
        parts=lambda x, draws: torch.split(x, 2),
    )
    model = SampledVaeModel(vae, torch.zeros(5, DIM), 0, Evidence(0.0))
    *_, variance = model.sampled_scores(torch.ones(2, DIM, dtype=torch.bool), 0)
    assert variance.tolist() == pytest.approx([0.3 * (0.4**2 + 0.4**2 + 0.2**2)] * 2)


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_recursion_has_the_requested_rounds(rounds: int) -> None:
    """Each encodes once."""
    vae = linear_gaussian(Recursive(method="recursive", rounds=rounds, draws=2), exact=True)
    encoded: list[Any] = []
    vae.encoder.register_forward_hook(lambda *args: encoded.append(args))
    x, _ = simulated(vae, 3)
    vae.conditional(x, torch.arange(12) < 4, torch.Generator())
    assert len(encoded) == rounds


def test_a_sampled_vae_has_no_closed_form() -> None:
    vae = relu_vae([[1.0]], [0.0], [[1.0]], 1.0)
    with pytest.raises(NotImplementedError, match=r"^it has no closed form: the spec lets lml"):
        vae.log_marginal(torch.zeros(1, 1))
