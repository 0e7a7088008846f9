"""Short forms of `make calibration` for a fixed number of masks of each size, and for targets on
exchangeable columns."""

import math

import pytest

from benchmarks.calibration import exchangeable
from benchmarks.calibration.replicates import Coverage, coverages, of_size, of_sum
from mptcore.specs.masks import Design

REPEATS = 500


def holds(found: Coverage, share: float) -> bool:
    return found.given == 1 and found.interval > share - 4 * math.sqrt(
        share * (1 - share) / REPEATS
    )


@pytest.mark.parametrize("per_size", [12, 20])
def test_reported_intervals_contain_the_truth(per_size: int) -> None:
    """In 90 % of the seeds or more, of the worst kind."""
    for what, found in coverages(per_size, REPEATS):
        assert not found.given or holds(found, 0.9), (what, found)


@pytest.mark.parametrize(
    ("size", "too_few", "enough"),
    [(4, 11, 12), (2, 11, 12), (1, 18, 19), (7, 18, 19)],
)
def test_a_wide_dimension_must_have_been_masked(size: int, too_few: int, enough: int) -> None:
    """A size that masks, or leaves, one of eight dimensions needs more masks: eight leave it out in
    a third of the seeds, whose errors are then far too small."""
    assert of_size("wide", size, too_few, 50).given == 0
    assert of_size("wide", size, enough, 50).given == 1


@pytest.mark.parametrize(
    ("design", "too_few", "enough"), [("independent", 11, 12), ("nested", 28, 29)]
)
def test_a_sum_needs_masks_of_each_size(design: Design, too_few: int, enough: int) -> None:
    assert of_sum("wide", design, too_few, 50).given == 0
    assert of_sum("wide", design, enough, 50).given == 1
    assert holds(of_sum("wide", design, enough, REPEATS), 0.9)


@pytest.mark.parametrize("name", ["cyclic shifts, D = 10", "one-hot, 6 + 6 levels"])
def test_targets_on_exchangeable_columns_are_calibrated(name: str) -> None:
    """All single dimensions have the same score, up to rounding. Truth by enumeration: the LML."""
    x, latent_dim, noise_precision, target = exchangeable.DATA[name]
    model = exchangeable.ppca_of(x, latent_dim, noise_precision)
    z, _, error = exchangeable.deviations(model, target, 100)
    assert error < 1e-13
    assert abs(z.mean().item()) < 4 / 10
    assert 1 - 4 * 0.0711 < z.std().item() < 1 + 4 * 0.0711  # 1 / √(2 · 99)
