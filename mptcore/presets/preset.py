"""Definition of a preset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mptcore.presets.results import Judge, Results, Verdict, judged
from mptcore.specs import ExperimentSpec


@dataclass(frozen=True)
class Preset:
    """A named list of specs with its published result. `published` has the numbers that the verdict
    compares with, by name: those of the paper, those measured with the published program where the
    paper has only a plot, or the claimed values of a claim of our own. Names that begin with
    `expected_` give the true values that are assumed for the power of one-sided tests."""

    name: str
    title: str
    statement: str
    specs: tuple[ExperimentSpec, ...]
    published: Mapping[str, tuple[float, ...]]
    judge: Judge

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """Return the verdict on the results of the specs, in their order."""
        if len(results) != len(self.specs):
            return Verdict("incomplete", (), f"{len(self.specs)} results, not {len(results)}")
        return judged(self.judge, self.published, results)
