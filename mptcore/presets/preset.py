"""Definition of a preset."""

from collections.abc import Iterator, Mapping, Sequence
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

    @property
    def needs(self) -> list[str]:
        """Names of the data sets and checkpoints that the specs read from a lab's folders."""
        return [*dict.fromkeys(name for spec in self.specs for name in _inputs_of(spec))]

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """Return the verdict on the results of the specs, in their order."""
        if len(results) != len(self.specs):
            return Verdict("incomplete", (), f"{len(self.specs)} results, not {len(results)}")
        return judged(self.judge, self.published, results)


WITHOUT_FILES = ("ppca", "digits")
"""Sources of data that need no file."""


def _inputs_of(spec: ExperimentSpec) -> Iterator[str]:
    data = spec.data
    if not getattr(data, "lines", None):
        name = getattr(data, "subset", None) or getattr(data, "file", None) or data.source
        if name not in WITHOUT_FILES:
            yield name
    for model in (spec.model, getattr(spec, "baseline", None)):
        if checkpoint := getattr(model, "checkpoint", None):
            yield checkpoint
