"""Rules for when a sampled number should not be quoted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

MIN_ESS = 20
"""Minimum effective sample size. Below it the delta method underestimates the standard error of the
logarithm of a mean weight."""
MAX_DOUBTFUL = 0.05
"""Maximum share of observations, or of conditionals, whose importance weights may be unreliable
after they were drawn again."""
DOUBTFUL_ERROR = 0.5
"""Possible error in nats of a conditional whose importance weights are unreliable, assumed to have
the same sign for all of them. If draws missed one of two modes of a posterior, the largest measured
error was 0.47 for each such term."""
MAX_BIAS = 0.05
"""Maximum bias in nats if there is no standard error to compare it with, as for grids."""


def doubtful_reason(bias: float, std_err: float | None, share: float, cure: str) -> str | None:
    """Return why a number should not be quoted, given its estimated bias, its standard error and
    the share of observations with unreliable weights."""
    if share > MAX_DOUBTFUL:
        detail = f"the importance weights of {share:.0%} of its terms cannot be trusted"
        return f"not final: {detail}, more than {MAX_DOUBTFUL:.0%}; {cure}"
    most, what = (MAX_BIAS, "") if std_err is None else (std_err, "its error of ")
    if not abs(bias) <= most:  # NaN is not known, and not final
        detail = f"its estimated bias of {bias:.2g} nats is beyond {what}{most:.2g}"
        return f"not final: {detail}; {cure}"
    return None


def shift_reason(shift: float, share: float, std_err: float | None) -> str | None:
    """Return why a score computed by quadrature should not be quoted, given how far another
    quadrature moves it and the share of the LML's dimensions that it covers. It may move by this
    share of MAX_BIAS, or by its standard error."""
    most = max(MAX_BIAS * share, std_err or 0.0)
    if shift <= most:  # NaN is not known, and not final
        return None
    detail = f"another grid would move it by {shift:.2g} nats, more than {most:.2g}"
    return f"not final: {detail}; raise the grid's nodes"


class Graded(Protocol):
    """Sampled scores of some sizes."""

    @property
    def grades(self) -> Tensor | None: ...  # (3, S, P)


@dataclass(frozen=True)
class Grade:
    """Quality of a sum of sampled scores."""

    bias: float
    share: float
    doubt: float
    """Error that the unreliable weights may cause, in addition to the errors by masks and draws."""

    @classmethod
    def of(cls, curve: Sequence[Graded], factor: float = 1) -> "Grade | None":
        """Grade the sum over the sizes of a curve, times a factor. None if the scores are exact.
        The share of unreliable weights is that of the worst size."""
        means = [one for scores in curve for one in _means(scores)]
        if not means:
            return None
        bias, shares = factor * sum(bias for bias, _ in means), [share for _, share in means]
        return cls(bias, max(shares), factor * DOUBTFUL_ERROR * sum(shares))

    @classmethod
    def of_each(cls, scores: Graded) -> "list[Grade]":
        """Grade each size by itself. An empty list if the scores are exact."""
        return [cls(bias, share, DOUBTFUL_ERROR * share) for bias, share in _means(scores)]


def _means(scores: Graded) -> list[tuple[float, float]]:
    """Return the mean bias and the mean doubtful share of each size."""
    if scores.grades is None:
        return []
    bias, share, _ = scores.grades.mean(2).tolist()
    return list(zip(bias, share, strict=True))
