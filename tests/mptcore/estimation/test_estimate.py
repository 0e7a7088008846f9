"""Estimates against calculations by hand, and the records made from them."""

import math
from dataclasses import replace

import pytest
import torch

from mptcore.estimation.estimate import Estimate, final_metric, lml_metrics, metric, point, total_of
from mptcore.estimation.model import Evidence
from mptcore.protocol.records import Labels, Metric, Point

LABELS: Labels = {"seed": 4, "model": "baseline"}
KNOWN = Estimate(math.log(3), 0.1, 5, degrees=9)


def test_the_exponential_by_the_delta_method() -> None:
    found = KNOWN.exponential()
    assert found.mean == pytest.approx(3)
    assert found.std_err == pytest.approx(0.3)
    assert (found.n, found.degrees) == (5, 9)
    assert Estimate(1.0, None, 1).exponential().std_err is None
    assert Estimate(699.0, 1.0, 1).exponential().mean == math.exp(699)
    assert Estimate(700.0, 1.0, 1).exponential().mean == math.inf  # exp(710) would be an error


def test_a_multiple_a_difference_and_a_sum() -> None:
    assert KNOWN.scaled(-2) == Estimate(-2 * KNOWN.mean, 0.2, 5, 9)
    beyond = Estimate(3.0, 0.3, 5, 9).beyond(Evidence(1.0, 0.4))
    assert beyond == Estimate(2.0, 0.5, 5, 9)
    total = total_of([Estimate(1.0, 0.3, 2, 1), Estimate(2.0, 0.4, 3, 2)])
    assert total == Estimate(3.0, 0.5, 5, 1)
    assert total_of([KNOWN, Estimate(1.0, None, 1)]).std_err is None


def test_records_of_an_estimate() -> None:
    assert metric("mpt", KNOWN, LABELS) == Metric("mpt", KNOWN.mean, 0.1, LABELS, None)
    assert point("score", 3, KNOWN, LABELS) == Point("score", 3, KNOWN.mean, 0.1, 5, LABELS, None)
    one = Estimate(1.0, None, 1)
    assert metric("mpt", one, LABELS, "why") == Metric("mpt", 1.0, None, LABELS, "why")
    assert point("score", 3, one, LABELS) == Point(
        "score", 3, 1.0, None, 1, LABELS, "one draw gives no standard error"
    )
    few = Estimate(1.0, 0.1, 3, degrees=2)
    why = "its standard error would rest on too few replicates: 2 degrees of freedom, not 7"
    assert metric("mpt", few, LABELS) == Metric("mpt", 1.0, None, LABELS, why)
    assert point("score", 3, few, LABELS) == Point("score", 3, 1.0, None, 3, LABELS, why)


def test_records_of_an_unconverged_estimate() -> None:
    assert list(final_metric("mpt", KNOWN, LABELS)) == [metric("mpt", KNOWN, LABELS)]
    unfinished = replace(KNOWN, not_final_reason="not final: why")
    assert list(final_metric("mpt", unfinished, LABELS)) == [
        Metric("mpt", None, None, LABELS, "not final: why"),
        Metric("mpt_not_final", KNOWN.mean, 0.1, LABELS, None),
    ]
    assert point("score", 3, unfinished, LABELS) == Point(
        "score", 3, KNOWN.mean, None, 5, LABELS, "not final: why"
    )


def test_records_of_an_lml() -> None:
    found = list(lml_metrics("lml_heldout", Evidence(-3.0, 0.2, None, {"ess": 30.0}), LABELS))
    assert found == [
        Metric("lml_heldout", -3.0, 0.2, LABELS, None),
        Metric("lml_heldout_ess", 30.0, 0.0, LABELS),
    ]
    found = list(lml_metrics("lml", Evidence(-3.0, 0.2, "why", {}), LABELS))
    assert [one.name for one in found] == ["lml", "lml_not_final"]


@pytest.mark.parametrize("factor", [1.0, 1e80, 1e150])
def test_moments_and_sums_of_very_large_scores_do_not_overflow(factor: float) -> None:
    """Fourth powers of scores of 1e80 do."""
    values = torch.randn(40, generator=torch.Generator().manual_seed(0)).double()
    expected, found = Estimate.of(values), Estimate.of(values * factor)
    assert found.mean == pytest.approx(expected.mean * factor)
    assert found.std_err == pytest.approx(expected.std_err * factor)  # type: ignore[operator]
    assert found.interval_degrees == pytest.approx(expected.interval_degrees)
    total, sum_of_both = total_of([expected] * 2), total_of([found] * 2)
    assert sum_of_both.interval_degrees == pytest.approx(total.interval_degrees)
