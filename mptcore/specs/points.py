"""Maximum number of points that a run writes. No torch."""

from dataclasses import dataclass

from mptcore.specs.base import Problem
from mptcore.specs.compute import Limits
from mptcore.specs.evaluate import MaskEvaluation

SERIES_OF_A_STEP = 6
"""Maximum number of series that a training records: loss, mpt, elbo, lml, and two of held-out
data."""


@dataclass(frozen=True)
class PointCount:
    """Numbers of points of a run, by the part of the spec that causes them."""

    curve: int
    """Points of the scores by mask size or rate, and of the bias."""
    convergence: int
    training: int

    @property
    def total(self) -> int:
        return self.curve + self.convergence + self.training

    def problems(self, limits: Limits) -> list[Problem]:
        """Return a problem if the run would write more points than the limit."""
        if self.total <= limits.points:
            return []
        by_size = {
            self.curve: ("/evaluate/masks", "use fewer mask sizes, seeds or train.curve_at"),
            self.convergence: ("/evaluate/convergence", "lower per_size, or leave it out"),
            self.training: ("/train/evaluate_every", "raise it"),
        }
        pointer, cure = by_size[max(by_size)]
        detail = (
            f"an experiment writes at most {limits.points} points (MPT_LIMITS__POINTS); this one "
            f"would write up to {self.total}: {cure}"
        )
        return [Problem(pointer, detail)]


def point_count(
    evaluate: MaskEvaluation, dim: int, models: int, starts: int, recorded: int, curves: int
) -> PointCount:
    """Count the points of an experiment on vectors. Each of `starts` trainings records `recorded`
    steps and gives `curves` curves, the last one included."""
    sizes = len(evaluate.masks.mask_sizes(dim))
    each_size = models * (2 if evaluate.bias else 1) + (models > 1)
    converging = models * evaluate.masks.per_size if evaluate.convergence else 0
    return PointCount(
        curve=starts * curves * sizes * each_size,
        convergence=starts * curves * converging,
        training=starts * recorded * SERIES_OF_A_STEP,
    )


def recorded_steps(length: int, every: int) -> int:
    """Return the number of recorded steps of a training: the first, the last, and each `every`."""
    return length // every + 2
