"""Linear VAEs over a grid, against the identity, PPCA and a dense grid; and the check of a grid
against others."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.calibration.grids import DIM, final_gaps, grid_and_truth
from mptcore.estimation.model import Evidence
from mptcore.estimation.not_final import shift_reason
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.moments import moment_of
from mptcore.families.linear_gaussian.routes import moment_solver
from mptcore.families.vae.grid import (
    GridVae,
    GridVaeModel,
    Nodes,
    checked_sizes,
    grid_evidence,
    mean_log_marginal,
    nodes_of,
    score_shift,
    scores_over,
)
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from mptcore.families.vae.networks import Decoder, linear_decoder
from mptcore.specs import GaussHermite, UniformGrid
from mptcore.specs.families.vae.models import AnyGrid

GRIDS: list[AnyGrid] = [
    GaussHermite(method="gauss_hermite"),
    UniformGrid(method="uniform_grid"),
]


def linear_vae(
    dim: int, latent_dim: int, grid: AnyGrid, likelihood: Likelihood, scale: float
) -> GridVae:
    torch.manual_seed(3)
    decoder = linear_decoder(dim, latent_dim).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, dtype=torch.float64))
    return GridVae(None, decoder, likelihood, latent_dim, grid)


def binary(n: int, dim: int) -> Tensor:
    draws = torch.Generator().manual_seed(5)
    return (torch.rand(n, dim, generator=draws) < 0.4).double()


def all_scores(model: GridVae, x: Tensor) -> Tensor:
    """S(m) for m = 1..D over all masks of each size."""
    scored = GridVaeModel(model, x, Evidence(0.0))
    dim = x.shape[1]
    with torch.no_grad():
        found = []
        for size in range(1, dim + 1):
            masks = torch.zeros(math.comb(dim, size), dim, dtype=torch.bool)
            for row, chosen in enumerate(itertools.combinations(range(dim), size)):
                masks[row, list(chosen)] = True
            found.append(scored.scores(masks).mean())
    return torch.stack(found)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.method)
@pytest.mark.parametrize("outputs", [BernoulliLikelihood(), GaussianLikelihood(3.0)])
def test_the_enumerated_scores_sum_to_the_lml_of_the_same_grid(
    grid: AnyGrid, outputs: Likelihood
) -> None:
    model = linear_vae(8, 2, grid, outputs, 1.0)
    x = binary(6, 8)
    assert all_scores(model, x).sum().item() == pytest.approx(mean_log_marginal(model, x), abs=1e-8)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.method)
@pytest.mark.parametrize("latent_dim", [1, 2, 3])
def test_weights_sum_to_one_and_give_the_prior_s_moments(grid: AnyGrid, latent_dim: int) -> None:
    nodes = nodes_of(grid, latent_dim)
    weights = nodes.log_weights.exp()
    assert len(weights) == grid.nodes**latent_dim
    assert weights.sum().item() == pytest.approx(1, abs=1e-12)
    moments = (weights[:, None] * nodes.z).T @ nodes.z
    tolerance = 1e-9 if isinstance(grid, GaussHermite) else 1e-6  # cut at 6
    assert torch.allclose(moments, torch.eye(latent_dim, dtype=torch.float64), atol=tolerance)


@pytest.mark.parametrize("latent_dim", [1, 2, 3])
def test_gaussian_outputs_give_ppca(latent_dim: int) -> None:
    grid = UniformGrid(method="uniform_grid", nodes=40, extent=7.0)
    model = linear_vae(6, latent_dim, grid, GaussianLikelihood(2.0), 0.7)
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    last = model.decoder.last
    loadings, mean = last.get_parameter("weight").detach(), last.get_parameter("bias").detach()
    density = LowRankGaussian(loadings, mean, torch.full((6,), 0.5, dtype=torch.float64))
    ppca = moment_solver(density.loadings, density.noise_variance, moment_of(x, mean, 0.5))
    masks = torch.rand(12, 6, generator=torch.Generator().manual_seed(2)) < 0.5
    masks[:, 0] = True
    with torch.no_grad():
        scored = GridVaeModel(model, x, Evidence(0.0))
        assert torch.allclose(scored.scores(masks), ppca.scores(masks), atol=1e-8)
        assert torch.allclose(scored.joint_scores(masks), ppca.joint_scores(masks), atol=1e-8)
    assert mean_log_marginal(model, x) == pytest.approx(ppca.log_marginal_likelihood(), abs=1e-8)


def test_a_grid_that_is_too_coarse_has_not_converged() -> None:
    """Against a dense grid in one dimension; the posterior of 200 pixels is narrow."""
    coarse = GaussHermite(method="gauss_hermite", nodes=6)
    model = linear_vae(200, 1, coarse, BernoulliLikelihood(), 1.0)
    x = binary(20, 200)
    dense = UniformGrid(method="uniform_grid", nodes=2000, extent=6.0)
    fine = GridVae(None, model.decoder, model.likelihood, 1, dense)
    truth = mean_log_marginal(fine, x)
    found = grid_evidence(model, x)
    assert found.not_final_reason is not None
    assert "twice the 6 nodes" in found.not_final_reason
    assert found.not_final_reason.endswith("; raise evaluate.lml.nodes")
    assert abs(found.value - truth) > 0.05
    final = grid_evidence(fine, x)
    assert (final.std_err, final.not_final_reason) == (0, None)
    assert abs(final.metrics["quadrature_shift"]) < 1e-6
    fewer = UniformGrid(method="uniform_grid", nodes=300, extent=6.0)
    assert mean_log_marginal(
        GridVae(None, model.decoder, model.likelihood, 1, fewer), x
    ) == pytest.approx(truth, abs=1e-6)


@pytest.mark.parametrize(
    ("grid", "scale", "seed", "off"),
    [
        (GaussHermite(method="gauss_hermite", nodes=40), 1.0, 2, 0.35),
        (GaussHermite(method="gauss_hermite", nodes=20), 2.0, 3, 1.7),
        (UniformGrid(method="uniform_grid", nodes=15, extent=6.0), 0.5, 2, 0.17),
    ],
)
def test_a_grid_that_agrees_with_its_double_may_be_wrong(
    grid: AnyGrid, scale: float, seed: int, off: float
) -> None:
    """Posteriors of 784 pixels fall between the nodes of both; a grid of another kind says so."""
    generator = torch.Generator().manual_seed(1000 * seed + 7)
    decoder = linear_decoder(784, 1).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(scale * drawn)
        z = torch.randn(4, 1, generator=generator, dtype=torch.float64)
        chances = torch.sigmoid(decoder(z))
    x = (torch.rand(4, 784, generator=generator, dtype=torch.float64) < chances).double()
    dense = UniformGrid(method="uniform_grid", nodes=2000, extent=6.0)
    value, doubled, truth = (
        mean_log_marginal(GridVae(None, decoder, BernoulliLikelihood(), 1, one), x)
        for one in (grid, grid.doubled(), dense)
    )
    assert abs(doubled - value) < 0.05
    assert abs(value - truth) == pytest.approx(off, abs=0.05)
    found = grid_evidence(GridVae(None, decoder, BernoulliLikelihood(), 1, grid), x)
    assert found.not_final_reason is not None
    assert "of another kind" in found.not_final_reason


@pytest.mark.parametrize("likelihood", [BernoulliLikelihood(), GaussianLikelihood(4.0)])
def test_the_lml_of_a_training_curve_does_not_depend_on_the_grid(likelihood: Likelihood) -> None:
    """It agrees with a dense grid where the model's own grid is far off."""
    coarse = GaussHermite(method="gauss_hermite", nodes=6)
    model = linear_vae(200, 1, coarse, likelihood, 1.0)
    x = binary(40, 200)
    dense = UniformGrid(method="uniform_grid", nodes=2000, extent=12.0)
    truth = mean_log_marginal(GridVae(None, model.decoder, likelihood, 1, dense), x)
    assert abs(mean_log_marginal(model, x) - truth) > 0.05
    runs = [model.quick_lml(x, 64, torch.Generator().manual_seed(seed)) for seed in range(50)]
    assert all(run.not_final_reason is None for run in runs)
    z = torch.tensor([(run.value - truth) / run.std_err for run in runs])
    assert abs(z.mean()) < 4 / math.sqrt(50)
    assert 0.7 < z.std() < 1.3  # its own error is 0.1
    too_few = model.quick_lml(x, 2, torch.Generator().manual_seed(1))
    assert too_few.not_final_reason is not None
    assert too_few.not_final_reason.endswith("raise train.lml_samples")


def test_a_grid_that_is_too_narrow_has_not_converged() -> None:
    """Check any fineness against PPCA, for observations far from the mean."""
    narrow = UniformGrid(method="uniform_grid", nodes=200, extent=3.0)
    model = linear_vae(8, 1, narrow, GaussianLikelihood(4.0), 1.0)
    last = model.decoder.last
    x = (last.bias + 4 * last.get_parameter("weight").mT).detach()
    found = grid_evidence(model, x)
    wide = UniformGrid(method="uniform_grid", nodes=400, extent=8.0)
    final = grid_evidence(GridVae(None, model.decoder, model.likelihood, 1, wide), x)
    assert found.not_final_reason is not None
    assert found.not_final_reason.endswith("; raise evaluate.lml.nodes and extent")
    assert final.not_final_reason is None
    assert abs(found.value - final.value) > 0.05


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_data_far_from_zero_lose_no_digits(offset: float) -> None:
    """In float32, whose squares of such numbers have none left after the point. Each dimension has
    its own distance."""
    model = linear_vae(64, 1, GRIDS[0], GaussianLikelihood(1.0), 0.5)
    x = torch.randn(20, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = mean_log_marginal(model, x)
    offsets = offset * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(32)
    with torch.no_grad():
        model.decoder.last.bias.add_(offsets)
    found = mean_log_marginal(model.float(), (x + offsets).float())
    assert found == pytest.approx(expected, abs=1e-3 * math.sqrt(1 + offset))


def test_gradients_are_those_of_finite_differences() -> None:
    model = linear_vae(5, 2, GRIDS[0], BernoulliLikelihood(), 0.5)
    x = binary(4, 5)
    masks = torch.tensor([[True, False, True, False, False], [True] * 5])
    weight = model.decoder.last.get_parameter("weight")
    model.score(x, masks).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    slope = weight.grad[2, 1].item()
    with torch.no_grad():
        weight[2, 1] += 1e-5
        above = model.score(x, masks).item()
        weight[2, 1] -= 2e-5
        below = model.score(x, masks).item()
    assert slope == pytest.approx((above - below) / 2e-5, rel=1e-6)


@pytest.mark.parametrize(
    ("nodes", "noise_precision", "scale", "least_off"),
    [
        (40, 100.0, 1.0, 0.2),
        (20, 1000.0, 1.0, 20.0),
        pytest.param(120, 100.0, 0.2, 1.0, marks=pytest.mark.slow),
    ],
)
def test_final_scores_are_correct(
    nodes: int, noise_precision: float, scale: float, least_off: float
) -> None:
    """Against PPCA. Every one of them was final, and off by up to `least_off` or more."""
    model, truth = grid_and_truth(nodes, noise_precision, 3, scale)
    masks = torch.rand(40, DIM, generator=torch.Generator().manual_seed(1)).argsort(-1) < 5
    assert DIM * (model.scores(masks) - truth.scores(masks)).abs().max() > least_off
    gaps = final_gaps(model, truth)
    assert all(abs(gap) < 0.05 for gap in gaps.values() if gap is not None)
    assert None in gaps.values()


def test_a_fine_grid_is_final_at_every_size() -> None:
    gaps = final_gaps(*grid_and_truth(50, 4.0, 3))
    assert list(gaps) == list(range(1, DIM + 1))
    assert all(gap is not None and abs(gap) < 1e-4 for gap in gaps.values())


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.method)
@pytest.mark.parametrize("outputs", [BernoulliLikelihood(), GaussianLikelihood(3.0)])
def test_nodes_in_parts_give_the_scores_of_the_model(
    grid: AnyGrid, outputs: Likelihood, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mptcore.families.vae.grid.CHUNK_BYTES", 4 * 8 * 8 * 50)
    vae, x = linear_vae(8, 2, grid, outputs, 1.0), binary(6, 8)
    masks = torch.rand(5, 8, generator=torch.Generator().manual_seed(1)) < 0.5
    masks[0] = True
    expected = vae.scored_on(x, 0, grid_evidence(vae, x)).scores(masks)
    found = scores_over(nodes_of(grid, 2), vae.decoder, outputs, x, masks)
    assert torch.allclose(found, expected, atol=1e-12)


def confident(flip: bool) -> tuple[Nodes, Decoder, Tensor, Tensor]:
    """Observations of a decoder that is sure at nearly all nodes; with `flip`, a pixel of one is as
    good as impossible. Return the nodes, the decoder, the observations and a mask."""
    generator = torch.Generator().manual_seed(5)
    weights = 4000 * torch.randn(2, 12, generator=generator, dtype=torch.float64)
    z = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    x = (z @ weights > 0).double()
    if flip:
        x[3, 0] = 1 - x[3, 0]
    nodes = nodes_of(UniformGrid(method="uniform_grid", nodes=30, extent=5.0), 2)
    decoder: Any = lambda z: z @ weights  # noqa: E731
    return nodes, decoder, x, torch.arange(12) < 5


@pytest.mark.parametrize("flip", [False, True])
def test_a_confident_decoder_is_checked_exactly(
    flip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far from the posterior p(x_j | z) is below the smallest number."""
    monkeypatch.setattr("mptcore.families.vae.grid.CHUNK_BYTES", 4 * 20 * 8 * 50)
    nodes, decoder, x, mask = confident(flip)
    found = scores_over(nodes, decoder, BernoulliLikelihood(), x, mask[None])
    each = F.logsigmoid((2 * x[:, None] - 1) * decoder(nodes.z))  # (N, G, D)
    rest = each[..., ~mask].sum(-1) + nodes.log_weights
    joint = (rest[..., None] + each[..., mask]).logsumexp(1)
    expected = (joint - rest.logsumexp(1)[:, None]).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)


def test_of_many_observations_some_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcore.families.vae.grid.MAX_CHECKED_OBSERVATIONS", 3)
    grid = UniformGrid(method="uniform_grid", nodes=4, extent=3.0)
    vae, x = linear_vae(8, 2, grid, BernoulliLikelihood(), 1.0), binary(9, 8)
    model = grid, vae.decoder, vae.likelihood
    assert score_shift(*model, x, 5, 2) == score_shift(*model, x[[0, 4, 8]], 5, 2) > 0


def test_few_observed_dimensions_are_checked_one_by_one_and_many_by_steps() -> None:
    assert [checked_sizes(size, 784) for size in (784, 768)] == [[784], [768]]
    every = {one for size in range(1, 785) for one in checked_sizes(size, 784)}
    assert len(every) < 48


def test_a_score_may_move_by_its_share_of_the_lml_s_tolerance_or_by_its_error() -> None:
    assert shift_reason(0.049, 1.0, None) is None
    assert shift_reason(0.051, 1.0, 0.0) is not None
    assert shift_reason(0.049, 0.5, None) is not None
    assert shift_reason(0.2, 0.1, 0.21) is None
    assert shift_reason(math.nan, 1.0, 9.0) is not None
