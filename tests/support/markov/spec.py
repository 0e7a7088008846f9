"""Spec of a toy family: a binary Markov chain over the dimensions."""

from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import Problem, Seeds, Spec
from mptcore.specs.compute import Compute, Limits
from mptcore.specs.data.arrays import DataSource
from mptcore.specs.evaluate import MaskEvaluation
from mptcore.specs.points import PointCount, point_count


class MarkovModel(Spec):
    """A binary Markov chain: each dimension repeats the one before, or changes."""

    family: Literal["markov"]
    """Family of the model."""
    stay: Annotated[float, Field(gt=0, lt=1)]
    """Probability that a dimension repeats the one before."""


class MarkovExperiment(Spec):
    """Experiments with Markov chains."""

    model: MarkovModel
    """Model that is scored."""
    data: DataSource
    """Observations of 0 and 1."""
    evaluate: MaskEvaluation = MaskEvaluation()
    """Measurements of the model."""
    seeds: Seeds = (0,)
    """Seeds of the runs, one run for each."""
    compute: Compute = Compute()
    """Device, precision, time limit and memory."""

    def mask_count(self) -> int:
        """Return the number of masks that all seeds score."""
        return len(self.seeds) * self.evaluate.count(self.data.dim)

    def point_count(self) -> PointCount:
        """Return the maximum number of points that a run writes."""
        starts = len(self.seeds)
        return point_count(self.evaluate, self.data.dim, 1, starts, recorded=0, curves=1)

    @property
    def memory_field(self) -> str:
        """Part of the spec that determines most of the memory."""
        return "/data"

    def memory_estimate(self) -> int:
        """Estimate the memory of a run, in bytes."""
        return 32 * self.data.n * self.data.dim

    def limit_problems(self, limits: Limits) -> list[Problem]:
        """Return the limits that the experiment exceeds."""
        return self.point_count().problems(limits)
