"""What a preset is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mptcore.presets.results import Judge, Results, Verdict, judged
from mptcore.specs import ExperimentSpec


@dataclass(frozen=True)
class Preset:
    """`published` is the data of the `statement`, with figures measured since on the published
    program where the paper gives a plot alone; of a claim of our own it is what the claim asks."""

    name: str
    title: str
    statement: str
    specs: tuple[ExperimentSpec, ...]
    published: Mapping[str, tuple[float, ...]]
    judge: Judge

    def verdict(self, results: Sequence[Results]) -> Verdict:
        """From the results of each of the specs, in their order."""
        if len(results) != len(self.specs):
            return Verdict("incomplete", (), f"{len(self.specs)} results, not {len(results)}")
        return judged(self.judge, self.published, results)
