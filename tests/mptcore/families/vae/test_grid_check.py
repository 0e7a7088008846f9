"""Scores over a grid are compared with those over other grids, size by size."""

import math

import pytest
import torch

from benchmarks.calibration.grids import DIM, final_gaps, grid_and_truth
from mptcore.estimation.quality import shift_reason
from mptcore.families.vae.grid import nodes_of
from mptcore.families.vae.grid_check import checked_sizes, scores_over
from mptcore.families.vae.grid_vae import grid_evidence
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from mptcore.specs.families.vae.models import AnyGrid
from tests.mptcore.families.vae.test_grid import GRIDS, binary, linear_vae


@pytest.mark.parametrize(
    ("nodes", "noise_precision", "scale", "least_off"),
    [(40, 100.0, 1.0, 0.2), (20, 1000.0, 1.0, 20.0), (120, 100.0, 0.2, 1.0)],
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
    gaps = final_gaps(*grid_and_truth(60, 4.0, 3))
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


def test_few_observed_dimensions_are_checked_one_by_one_and_many_by_steps() -> None:
    assert [checked_sizes(size, 784) for size in (784, 768)] == [[784], [768]]
    assert checked_sizes(118, 784) == [784 - 512, 784 - 725]
    assert checked_sizes(1, 784) == [60, 1]
    every = {one for size in range(1, 785) for one in checked_sizes(size, 784)}
    assert len(every) < 48


def test_a_score_may_move_by_its_share_of_the_lml_s_tolerance_or_by_its_error() -> None:
    assert shift_reason(0.049, 1.0, None) is None
    assert shift_reason(0.051, 1.0, 0.0) is not None
    assert shift_reason(0.049, 0.5, None) is not None
    assert shift_reason(0.2, 0.1, 0.21) is None
    assert shift_reason(math.nan, 1.0, 9.0) is not None
