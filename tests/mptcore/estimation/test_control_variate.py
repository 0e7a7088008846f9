"""Scores of single dimensions reduce the masks that a target needs, without bias."""

from typing import Any

import numpy as np
import pytest
import torch

from mptcore.estimation import target
from mptcore.estimation.allocation import NEIGHBOURS
from mptcore.estimation.control_variate import ControlVariate
from mptcore.protocol.records import Metric, Point
from mptcore.run import run
from mptlab_contract import masks_of
from tests.support.runs import metric, spec_of, std_err_of, value_of

DIM = 7
DIGITS: dict[str, Any] = {
    "model": {"family": "ppca", "latent_dim": 5, "init": "maximum_likelihood"},
    "data": {"source": "digits"},
}


def singles(models: int = 2) -> ControlVariate:
    generator = torch.Generator().manual_seed(1)
    return ControlVariate(torch.randn(models, DIM, generator=generator, dtype=torch.float64))


def test_predictions_are_means_of_single_scores() -> None:
    values = torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
    masks = torch.tensor([[True, False, False], [True, False, True]])
    found = ControlVariate(values).predictions(masks)
    assert found.tolist() == [[1 - 3, 3.5 - 3], [0 - 1, 1.5 - 1]]


@pytest.mark.parametrize("size", range(1, DIM + 1))
def test_predictions_of_all_masks_of_a_size_have_the_mean_zero(size: int) -> None:
    """So whatever multiple is subtracted, the mean score stays the same."""
    found = singles().predictions(masks_of(DIM, size))
    assert found.mean(1).tolist() == pytest.approx([0, 0], abs=1e-14)


def test_slopes_are_the_regression_on_the_pilot_and_are_kept() -> None:
    """Two strata, which are neighbours, have unequally many masks."""
    generator = torch.Generator().manual_seed(2)
    counts = torch.tensor([5, 8])
    values, predicted = (torch.randn(2, 13, generator=generator).double() for _ in range(2))
    single = singles()
    found = single.residuals(values, predicted, counts)
    assert NEIGHBOURS > 2
    parts = [slice(0, 5), slice(5, 13)]
    for model in range(2):
        pairs = [(values[model, s].numpy(), predicted[model, s].numpy()) for s in parts]
        both = sum(float(np.sum((x - x.mean()) * y)) for y, x in pairs)
        slope = both / sum(float(np.sum((x - x.mean()) ** 2)) for _, x in pairs)
        expected = values[model] - slope * predicted[model]
        assert found[model].tolist() == pytest.approx(expected.tolist())
        again = single.residuals(predicted, values, counts)  # of a later round
        expected = predicted[model] - slope * values[model]
        assert again[model].tolist() == pytest.approx(expected.tolist())


def test_each_stratum_has_the_slope_of_its_neighbours() -> None:
    """Values are three times their predictions in the first strata, and unrelated in the last."""
    strata = 3 * NEIGHBOURS
    generator = torch.Generator().manual_seed(3)
    predicted = torch.randn(1, 4 * strata, generator=generator).double()
    values = 3 * predicted
    values[:, 2 * strata :] = 1.0
    found = singles(1).residuals(values, predicted, torch.full((strata,), 4))
    assert found[:, : 4 * NEIGHBOURS].abs().max() < 1e-12
    assert torch.equal(found[:, -4 * NEIGHBOURS :], values[:, -4 * NEIGHBOURS :])


def test_what_does_not_vary_predicts_nothing() -> None:
    values = torch.rand(1, 6).double()
    found = singles(1).residuals(values, torch.zeros(1, 6).double(), torch.tensor([3, 3]))
    assert torch.equal(found, values)


def test_rounding_predicts_nothing() -> None:
    """Eleven equal scores and one that no mask of the pilot contains: predictions are equal but for
    rounding, and a later mask that contains it keeps its score."""
    single = ControlVariate(torch.tensor([[1.0] + [0.1] * 11], dtype=torch.float64))
    orders = torch.rand(40, 11, generator=torch.Generator().manual_seed(4)).argsort(1)
    masks = torch.zeros(40, 12, dtype=torch.bool)
    for row, size in enumerate([3, 5, 7, 9] * 10):
        masks[row, 1 + orders[row, :size]] = True
    predicted = single.predictions(masks)
    noise = torch.randn(1, 40, generator=torch.Generator().manual_seed(6)).double()
    predicted = predicted + 1e-16 * noise  # as other processors may round
    assert predicted.std() > 0
    values = torch.randn(1, 40, generator=torch.Generator().manual_seed(5)).double()
    assert torch.equal(single.residuals(values, predicted, torch.tensor([40])), values)
    later = single.predictions(masks | (torch.arange(12) == 0))
    assert torch.equal(single.residuals(values, later, torch.tensor([40])), values)


def test_differences_far_below_the_scores_keep_their_mean_of_zero() -> None:
    """The mean of scores about 1.7 is rounded to 1e-16; that of predictions of 1e-10 is exacter."""
    generator = torch.Generator().manual_seed(0)
    values = 1e-9 * torch.rand(1, DIM, generator=generator, dtype=torch.float64) - 1.7
    found = ControlVariate(values).predictions(torch.eye(DIM, dtype=torch.bool))
    assert abs(found.mean().item()) < 1e-23


def ran(max_masks: int = 200_000, **evaluate: Any) -> list[Any]:
    evaluate = {"target_std_err": 0.05, "max_masks": max_masks, **evaluate}
    return list(run(spec_of({**DIGITS, "evaluate": evaluate})))


def masks_used(found: list[Any]) -> tuple[float, float]:
    """Return the number of masks, and of those that belong to a size and not to its pilot."""
    sizes = sum(r.n for r in found if isinstance(r, Point) and r.series == "score")
    return value_of(metric(found, "masks")), sizes


def test_a_target_on_digits_needs_a_fifth_of_the_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ran()
    used, _ = masks_used(found)
    assert std_err_of(metric(found, "mpt")) <= 0.05
    difference = metric(found, "difference")
    assert abs(value_of(difference)) < 4 * std_err_of(difference)
    monkeypatch.setattr(ControlVariate, "residuals", lambda self, values, *_: values)
    assert used < masks_used(ran())[0] / 5


@pytest.mark.parametrize(("max_masks", "extra"), [(64 * 10 + 63, 0), (64 * 10 + 64, 64)])
def test_single_dimensions_are_scored_if_all_other_masks_remain(max_masks: int, extra: int) -> None:
    """A pilot of eight masks of each of 64 sizes, and two more of each."""
    found = ran(max_masks)
    used, sizes = masks_used(found)
    assert used <= max_masks
    assert used - sizes == 8 * 63 + extra  # size 64 has one mask
    assert sizes >= 2 * 63 + 1


@pytest.mark.parametrize(("sizes", "extra"), [([30], 0), ([30, 31], 64)])
def test_single_dimensions_cost_no_more_than_the_pilot(
    sizes: list[int], extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pilot of 60 masks, or of 64."""
    monkeypatch.setattr(target, "pilot_masks", lambda strata, _: 60 if strata == 1 else 32)
    found = ran(masks={"schedule": "sizes", "sizes": sizes})
    used, of_sizes = masks_used(found)
    assert used - of_sizes == (60 if len(sizes) == 1 else 64) + extra


def test_enumerated_sizes_need_no_single_dimensions() -> None:
    evaluate = {"masks": {"schedule": "sizes", "sizes": [1, 64]}, "target_std_err": 0.05}
    found = list(run(spec_of({**DIGITS, "evaluate": evaluate})))
    assert value_of(metric(found, "masks")) == 65


def test_a_target_with_single_scores_is_unbiased_and_calibrated() -> None:
    """100 seeds of masks on one data set: z = (MPT − LML) / its error."""
    spec = {
        "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator"},
        "data": {"source": "ppca", "n": 40, "dim": 30, "latent_dim": 2, "noise_precision": 5.0,
                 "seed": 1},
        "evaluate": {"target_std_err": 0.1},
        "seeds": list(range(100)),
    }  # fmt: skip
    found = list(run(spec_of(spec)))
    gaps = [r for r in found if isinstance(r, Metric) and r.name == "difference"]
    z = torch.tensor([value_of(one) / std_err_of(one) for one in gaps])
    assert len(z) == 100
    assert abs(z.mean().item()) < 4 / 10
    assert 1 - 4 * 0.0711 < z.std().item() < 1 + 4 * 0.0711  # 1 / √(2 · 99)
