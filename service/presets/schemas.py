"""Answers about presets."""

from mptcore.specs import ExperimentSpec
from service.experiments.schemas import ExperimentSummary
from service.schemas import ResponseModel


class PresetOut(ResponseModel):
    """A table or figure of the paper."""

    name: str
    """Name of the preset."""
    title: str
    """Title."""
    statement: str
    """Claim of the paper, in words."""
    published: dict[str, list[float]]
    """Published numbers, by name."""
    specs: list[ExperimentSpec]
    """Specs to submit, in this order."""
    tags: list[list[str]]
    """Tags for the experiment of each spec, by which it is found as a run of the preset."""
    needs: list[str]
    """Data sets and checkpoints that the specs read from the lab's folders."""
    missing: dict[str, str]
    """Names in `needs` that are known to be missing here, with the reason and what to do."""
    seconds: float | None
    """Time that the specs took one after the other on the processors that computed the report of
    this version. null: they have not run there."""


class PresetList(ResponseModel):
    items: list[PresetOut]
    """Presets."""
    checkpoints: list[str]
    """Checkpoints of masked language models that this service sees in the lab's folders."""


class PresetRuns(ResponseModel):
    """Experiments that ran a preset's specs."""

    name: str
    """Name of the preset."""
    status: str
    """`succeeded`: all its specs have run; `running`: some may yet; `incomplete`; or `not run`."""
    runs: list[ExperimentSummary | None]
    """An experiment for each spec of the preset. null: no experiment ran it."""


class PresetRunsList(ResponseModel):
    items: list[PresetRuns]
    """Experiments, by preset."""


class ComparisonOut(ResponseModel):
    """A measured figure and the published one."""

    what: str
    """Name of the figure."""
    published: float
    """Published value."""
    measured: float | None
    """Value computed from the experiments. null: a result is missing."""
    low: float | None
    """Lowest value that agrees. null: no bound."""
    high: float | None
    """Highest value that agrees. null: no bound."""
    half_width: float | None
    """Half the width of the interval of the measured value at 95 %. 0: without a standard error."""
    power: float
    """Probability that the figure is found to agree if the values are equal or, for a bound on one
    side, if the true value is the expected one. 1: without a sampling error."""
    outcome: str
    """`agrees` if the whole interval is between `low` and `high`, `differs` if it is completely
    outside, otherwise `cannot tell`."""
    agrees: bool
    """True if the outcome is `agrees`."""


class VerdictOut(ResponseModel):
    """Comparison of experiments with the paper."""

    verdict: str
    """`agrees`, `differs`, `cannot tell` or `incomplete`."""
    comparisons: list[ComparisonOut]
    """A comparison for each published figure."""
    missing: str | None
    """Missing parts of the comparison. null: nothing."""
