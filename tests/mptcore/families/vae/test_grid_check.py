"""Scores over a grid are compared with those over other grids, size by size."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.calibration.grids import DIM, final_gaps, grid_and_truth
from mptcore.estimation.not_final import shift_reason
from mptcore.families.vae.grid import Nodes, nodes_of
from mptcore.families.vae.grid_check import checked_sizes, score_shift, scores_over
from mptcore.families.vae.grid_vae import grid_evidence
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from mptcore.families.vae.networks import Decoder
from mptcore.specs.families.vae.models import AnyGrid, UniformGrid
from tests.mptcore.families.vae.test_grid import GRIDS, binary, linear_vae


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
    monkeypatch.setattr("mptcore.families.vae.grid_check.CHUNK_BYTES", 4 * 8 * 8 * 50)
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
    monkeypatch.setattr("mptcore.families.vae.grid_check.CHUNK_BYTES", 4 * 20 * 8 * 50)
    nodes, decoder, x, mask = confident(flip)
    found = scores_over(nodes, decoder, BernoulliLikelihood(), x, mask[None])
    each = F.logsigmoid((2 * x[:, None] - 1) * decoder(nodes.z))  # (N, G, D)
    rest = each[..., ~mask].sum(-1) + nodes.log_weights
    joint = (rest[..., None] + each[..., mask]).logsumexp(1)
    expected = (joint - rest.logsumexp(1)[:, None]).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)


def test_of_many_observations_some_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mptcore.families.vae.grid_check.MAX_OBSERVATIONS", 3)
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
