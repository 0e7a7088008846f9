"""Spending masks where they reduce the error most, until a target standard error is reached."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.estimation.estimate import Estimate
from mptcore.protocol.records import Labels, Log, Metric, Record
from mptcore.runtime.session import MaskPlan, Step, Work

SHARES = (0.25, 0.5, 1.0)
"""What each round draws of the masks that the plan still wants: the last one all of them."""
EXCESS = 3.0
"""The variance of a squared deviation, over the square of its mean: scores have a kurtosis of about
4."""
SAFETY = 3.0
"""Standard deviations by which variances may still move before the target is missed."""
LEAST_LEFT = 1 / 8
"""Of the variance asked for: where earlier rounds leave less of it, the target is missed, and the
rest costs no more than this."""

Draw = Callable[[Tensor], Work[list[Tensor]]]
"""Scores so many masks of each stratum, (strata,), 0 among them: the values of each, (rows, n). A
row is a model, or the difference of two."""
Smooth = Callable[[Tensor], Tensor]
"""Makes the plan's variances (strata,) of those measured. It may be as biased as it likes."""


@dataclass
class StratifiedSample:
    """The sum over strata of width × mean, from rounds of masks.

    A stratum's mean is Σ_k λ_k · mean of round k with Σ_k λ_k = 1. Both λ_k and the number of masks
    of a round are fixed before it is drawn, so that each round adds λ_k · S in expectation whatever
    the earlier ones showed: the estimate is unbiased, though they choose the plan.
    """

    widths: Tensor  # (strata,), by which the sum over strata weights their means
    draws: list[Tensor]  # (rows, n) of each stratum, the pilot's too: its variances are of all
    counts: Tensor  # (strata,), without the pilot, whose λ is 0
    means: Tensor  # (rows, strata)
    left: Tensor  # (strata,), the λ that is not given yet
    spread: Tensor  # (strata,), Σ_k λ_k² / n_k
    masks: int
    """Scored in all, those of the pilot too."""

    @classmethod
    def of_pilot(cls, widths: Tensor, pilot: list[Tensor]) -> "StratifiedSample":
        none = torch.zeros(len(pilot), dtype=torch.float64)
        means = torch.zeros(len(pilot[0]), len(pilot), dtype=torch.float64)
        masks = sum(values.shape[1] for values in pilot)
        return cls(widths, pilot, none.long(), means, none + 1, none, masks)

    def add(self, values: list[Tensor], share: Tensor) -> None:
        """One more round, with λ (strata,)."""
        counts = torch.tensor([one.shape[1] for one in values])
        drawn = counts.clamp(min=1)  # where nothing is drawn the sum and λ are 0
        sums = torch.stack([one.sum(1) for one in values], 1)
        self.means = self.means + share * sums / drawn
        self.spread = self.spread + share.square() / drawn
        self.left = self.left - share
        self.draws = [torch.cat(pair, 1) for pair in zip(self.draws, values, strict=True)]
        self.counts = self.counts + counts
        self.masks += int(counts.sum())

    @property
    def least(self) -> Tensor:  # (strata,)
        """Masks that are still to be drawn: two in all, so that what the first shows can count."""
        return (self.left > 0).long() + (self.counts == 0)

    @property
    def variances(self) -> Tensor:  # (rows, strata)
        return torch.stack([one.var(1) for one in self.draws], 1)

    @property
    def std_errs(self) -> Tensor:  # (rows, strata)
        return (self.variances * self.spread).sqrt()

    def estimates(self) -> list[list[Estimate]]:
        """Of each stratum, by each row."""
        means, errors, counts = self.means.T.tolist(), self.std_errs.T.tolist(), self.counts
        return [
            [Estimate(mean, error, n) for mean, error in zip(*rows, strict=True)]
            for *rows, n in zip(means, errors, counts.tolist(), strict=True)
        ]

    def total_estimates(self) -> list[Estimate]:
        """Of the sum over strata, by each row."""
        means = (self.means * self.widths).sum(1).tolist()
        errors = (self.std_errs * self.widths).square().sum(1).sqrt().tolist()
        n = int(self.counts.sum())
        return [Estimate(mean, error, n) for mean, error in zip(means, errors, strict=True)]


def sample_to_target(
    draw: Draw,
    widths: Tensor,  # (strata,)
    target: float,
    max_masks: int,
    pilot: int,
    smooth: Smooth = lambda variances: variances,
    row: int = 0,
) -> Work[StratifiedSample]:
    """A pilot, then rounds of masks after which the sum over strata of one row is to have the
    standard error `target`, with at most `max_masks`, the pilot's too. No round is added where the
    error came out larger: a choice by the scores that are kept would bias them.

    Masks go to the strata in proportion to width × standard deviation (Neyman 1934), as all draws
    so far measured it.
    """
    progress = MaskPlan(max_masks, max_masks)
    yield Step(plan=progress)
    first = yield from draw(torch.full((len(widths),), pilot))
    sample = StratifiedSample.of_pilot(widths, first)
    for share in SHARES:
        if not sample.least.any():
            break
        wanted = _wanted(sample, smooth(sample.variances[row]), target**2)
        wanted = affordable(wanted, sample.least, max_masks - sample.masks)
        progress.masks = sample.masks + int(wanted.sum())
        counts = (share * wanted).ceil().long()
        weight = sample.left * (counts / wanted.clamp(min=1))
        sample.add((yield from draw(counts)), weight)
    progress.masks = sample.masks
    return sample


def _wanted(sample: StratifiedSample, variances: Tensor, target: float) -> Tensor:
    """The masks of each stratum that are still to be drawn for the variance `target`, (strata,)."""
    spent = (sample.widths.square() * variances * sample.spread).sum()
    deviations = sample.widths * sample.left * variances.sqrt()

    def counts(variance: float | Tensor) -> Tensor:
        rest = (variance - spent).clamp(min=LEAST_LEFT * target)
        return torch.maximum(neyman(deviations, rest), sample.least)

    exact = counts(target)
    return counts(target / (1 + SAFETY * _uncertainty(sample, variances, exact)))


def _uncertainty(sample: StratifiedSample, variances: Tensor, counts: Tensor) -> Tensor:
    """The relative standard deviation by which so many more masks of each stratum (strata,) may
    move the estimated variance of the sum."""
    known = torch.tensor([one.shape[1] for one in sample.draws])
    spread = sample.spread + sample.left.square() / counts.clamp(min=1)
    parts = sample.widths.square() * variances * spread
    moves = EXCESS * (1 / known - 1 / (known + counts))
    return (parts.square() * moves).sum().sqrt() / parts.sum().clamp(min=1e-300)


def target_records(
    sample: StratifiedSample, row: int, target: float, scale: float, labels: Labels
) -> Iterator[Record]:
    """What became of a target for `scale` times the sum over strata of a row."""
    std_err = sample.total_estimates()[row].scaled(scale).std_err
    assert std_err is not None
    yield Metric("masks", sample.masks, 0.0, labels)
    yield Metric("target_reached", float(std_err <= target), 0.0, labels)
    if std_err > target:
        cure = "raise max_masks, or ask for slightly less where masks were left"
        detail = f"{std_err:.3g} after {sample.masks} masks: {cure}"
        yield Log("warning", f"target_std_err {target} was not reached: {detail}")


def neyman(deviations: Tensor, variance: float | Tensor) -> Tensor:
    """The fewest masks of each stratum with Σ sd² / n = `variance`: n ∝ sd (Neyman 1934)."""
    return (deviations * deviations.sum() / variance).clamp(max=1e15).ceil().long()


def affordable(counts: Tensor, least: Tensor, most: int) -> Tensor:
    """Counts with a sum of `most` or less; what is above the least of each is cut in proportion."""
    spare, total = most - int(least.sum()), int((counts - least).sum())
    if total <= spare:
        return counts
    return least + ((counts - least).double() * (spare / total)).floor().long()


def smoothed(variances: Tensor, over: int) -> Tensor:
    """The mean over the neighbours of each (K,), `over` with itself, fewer at the ends: a few draws
    say little of a variance."""
    half = min(over, len(variances)) // 2
    ones = torch.ones(1, 1, 2 * half + 1, dtype=variances.dtype)
    sums = torch.nn.functional.conv1d(variances[None, None], ones, padding=half)
    counts = torch.nn.functional.conv1d(torch.ones_like(variances)[None, None], ones, padding=half)
    return (sums / counts)[0, 0]
