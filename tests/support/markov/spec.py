"""Spec of a toy family: a binary Markov chain over the dimensions."""

from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import Problem, Spec
from mptcore.specs.experiment import VectorExperiment


class MarkovModel(Spec):
    """A binary Markov chain: each dimension repeats the one before, or changes."""

    family: Literal["markov"]
    """Family of the model."""
    stay: Annotated[float, Field(gt=0, lt=1)]
    """Probability that a dimension repeats the one before."""


class MarkovExperiment(VectorExperiment):
    """Experiments with Markov chains."""

    model: MarkovModel
    """Model that is scored."""

    def model_problems(self) -> list[Problem]:
        return self.data.binary_problems("a Markov chain")

    def memory_estimate(self) -> int:
        return 32 * self.data.n * self.data.dim
