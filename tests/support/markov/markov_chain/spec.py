"""The spec. It is imported without torch."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mptcore.specs.base import Problem, Spec
from mptcore.specs.experiment import OutsideExperiment, VectorExperiment


class MarkovModel(Spec):
    """A binary Markov chain: each dimension repeats the one before, or changes."""

    family: Literal["markov"]
    """Family of the model."""
    stay: Annotated[float, Field(gt=0, lt=1)]
    """Probability that a dimension repeats the one before."""


class MarkovExperiment(VectorExperiment, OutsideExperiment):
    """Experiments with Markov chains."""

    run: ClassVar[str] = "markov_chain.run:MarkovRun"
    model: MarkovModel
    """Model that is scored."""

    def model_problems(self) -> list[Problem]:
        return self.data.binary_problems("a Markov chain")

    def memory_estimate(self) -> int:
        return 24 * self.data.n * self.data.dim**2
