"""Spending masks where they reduce the error most, until a target standard error is reached."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.runtime.session import Work

MARGIN = 1.1
"""Each round aims at this much less variance than asked for, so that one usually suffices."""

Draw = Callable[[Tensor], Work[list[Tensor]]]
"""Scores so many masks of each stratum, (strata,): the values of each, (models, n)."""


@dataclass(frozen=True)
class StratifiedSample:
    """What was scored in each stratum, (models, n) each. The pilot's masks chose how many were
    drawn, and are left out, so that means are unbiased."""

    values: list[Tensor]
    widths: Tensor  # (strata,), by which the sum over strata weights their means
    masks: int
    """Scored in all, those of the pilot too."""

    @property
    def counts(self) -> Tensor:  # (strata,)
        return torch.tensor([one.shape[1] for one in self.values])

    @property
    def means(self) -> Tensor:  # (models, strata)
        return torch.stack([one.mean(1) for one in self.values], 1)

    @property
    def std_errs(self) -> Tensor:  # (models, strata)
        return torch.stack([one.std(1) for one in self.values], 1) / self.counts.sqrt()

    @property
    def totals(self) -> Tensor:  # (models,)
        """The sum over strata of width × mean."""
        return (self.means * self.widths).sum(1)

    @property
    def total_std_errs(self) -> Tensor:  # (models,)
        return (self.std_errs * self.widths).square().sum(1).sqrt()


def sample_to_target(
    draw: Draw,
    widths: Tensor,  # (strata,)
    target: float,
    max_masks: int,
    pilot: int,
    smooth: Callable[[Tensor], Tensor] = lambda variances: variances,
) -> Work[StratifiedSample]:
    """Rounds of masks until the first model's sum over strata has the standard error `target`, or
    `max_masks` are scored; the pilot, so many masks of each stratum, counts too.

    Masks go to the strata in proportion to width × standard deviation (Neyman 1934), as a pilot,
    then the rounds so far, measured it; `smooth` makes the plan of their variances (strata,).
    """
    counts = torch.full((len(widths),), pilot)
    known = yield from draw(counts)
    masks = int(counts.sum())
    values: list[Tensor] = []
    while masks + 2 * len(widths) <= max_masks:
        variances = torch.stack([one[0].var() for one in known])
        wanted = neyman(widths * smooth(variances).sqrt(), target**2 / MARGIN)
        more = affordable(_missing(wanted, values), max_masks - masks)
        more_values = yield from draw(more)
        values = _joined(values, more_values)
        known = values
        masks += int(more.sum())
        if StratifiedSample(values, widths, masks).total_std_errs[0] <= target:
            break
    return StratifiedSample(values, widths, masks)


def neyman(deviations: Tensor, variance: float) -> Tensor:
    """The fewest masks of each stratum with Σ sd² / n = `variance`: n ∝ sd (Neyman 1934). At least
    two, for a standard error."""
    counts = deviations * deviations.sum() / variance
    return counts.clamp(max=1e15).ceil().clamp(min=2).long()


def affordable(counts: Tensor, most: int) -> Tensor:
    """Counts with a sum of `most` or less, at least two each."""
    total = int(counts.sum())
    if total <= most:
        return counts
    spare = most - 2 * len(counts)
    return (2 + (counts.double() * (spare / total)).floor()).long()


def _missing(wanted: Tensor, values: list[Tensor]) -> Tensor:
    """Masks still to draw of each stratum: a twentieth of those drawn at least."""
    if not values:
        return wanted
    drawn = torch.tensor([one.shape[1] for one in values])
    return torch.maximum(wanted - drawn, drawn // 20 + 1)


def _joined(values: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    if not values:
        return more
    return [torch.cat(pair, 1) for pair in zip(values, more, strict=True)]
