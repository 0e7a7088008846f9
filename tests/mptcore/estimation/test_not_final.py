"""Numbers that must not be final, each next to the nearest number that may be."""

import math

import pytest
import torch

from mptcore.estimation.not_final import doubtful_reason
from mptcore.estimation.scores import cumulative_estimate, size_estimates
from mptcore.specs import AllSizes

ADVICE = "raise draws"


@pytest.mark.parametrize(
    ("bias", "std_err", "share", "final"),
    [
        (0.10, 0.11, 0.0, True),
        (0.12, 0.11, 0.0, False),
        (-0.12, 0.11, 0.0, False),
        (0.04, None, 0.0, True),  # one mask gives no error: an absolute limit
        (0.06, None, 0.0, False),
        (math.nan, None, 0.0, False),  # too few draws for an estimate
        (math.nan, 0.5, 0.0, False),
        (0.0, 0.1, 0.05, True),
        (0.0, 0.1, 0.06, False),
    ],
)
def test_too_large_bias_or_weights_are_doubtful(
    bias: float, std_err: float | None, share: float, final: bool
) -> None:
    assert (doubtful_reason(bias, std_err, share, ADVICE) is None) == final


def test_unfinished_scores_give_a_reason_and_advice() -> None:
    share = "the importance weights of 6% of its terms cannot be trusted, more than 5%"
    assert doubtful_reason(9.0, 0.1, 0.06, ADVICE) == f"not final: {share}; raise draws"
    bias = "its estimated bias of -0.12 nats is beyond"
    error = doubtful_reason(-0.123, 0.11, 0.0, ADVICE)
    assert error == f"not final: {bias} its error of 0.11; raise draws"
    assert doubtful_reason(-0.123, None, 0.0, ADVICE) == f"not final: {bias} 0.05; raise draws"


def test_a_sum_is_as_doubtful_as_its_most_doubtful_size() -> None:
    """The weights of one size of a hundred are all unreliable."""
    shares = torch.zeros(100, dtype=torch.float64)
    shares[7] = 1
    rows = torch.stack([shares * 0, shares * 0 + 0.5, shares, shares * 0])  # (R, S)
    curve = rows[:, :, None].expand(-1, -1, 3)  # three masks of each size
    whole = cumulative_estimate([curve[:, :40], curve[:, 40:]], AllSizes(per_size=3)).scaled(2)
    assert (whole.bias, whole.doubtful, whole.doubt) == pytest.approx((100, 1, 2 * 0.5))
    nested = cumulative_estimate([curve], AllSizes(per_size=3, design="nested"))
    assert (nested.bias, nested.doubtful, nested.doubt) == pytest.approx((50, 1, 0.5))
    exact = cumulative_estimate([curve[:1]], AllSizes(per_size=3))
    assert (exact.bias, exact.doubtful, exact.doubt) == (0, 0, 0)
    second, eighth = size_estimates(curve[:, [2, 7]], AllSizes(per_size=3))
    assert (second.bias, second.doubtful, second.doubt) == (0.5, 0, 0)
    assert (eighth.bias, eighth.doubtful, eighth.doubt) == (0.5, 1, 0.5)
