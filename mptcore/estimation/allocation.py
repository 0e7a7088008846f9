"""Spending masks where they reduce the error most, until a target standard error is reached."""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.estimation.masks import draw_independent
from mptcore.estimation.model import MaskedModel
from mptcore.estimation.scores import SizeScores, score_masks
from mptcore.runtime.session import Tape
from mptcore.specs.families.linear_gaussian.experiment import PILOT

MARGIN = 1.1
"""Each round aims at this much less variance than asked for, so that one usually suffices."""

Curves = list[tuple[SizeScores, ...]]
"""For each size, the scores by each model."""


@dataclass(frozen=True, slots=True)
class Round:
    """Where an allocated run stands after some rounds. `curves` is empty after the pilot: its masks
    choose how many are drawn of each size, and are then left out so that the mean is unbiased."""

    curves: Curves
    masks_scored: int
    std_err: float

    def reached(self, target: float) -> bool:
        return self.std_err <= target


def neyman(deviation: Tensor, variance: float) -> Tensor:
    """The fewest masks of each size with Σ sd_m² / n_m = `variance`: n_m ∝ sd_m (Neyman 1934). At
    least two, for a standard error."""
    count = deviation * deviation.sum() / variance
    return count.clamp(max=1e15).ceil().clamp(min=2).long()


def score_to_target(
    models: Sequence[MaskedModel],
    sizes: Sequence[int],
    target: float,
    max_masks: int,
    generator: torch.Generator,
    batch: int,
    tape: Tape,
) -> Iterator[int | Round]:
    """Rounds of masks until the sum of the first model's scores over all sizes has the target
    standard error, or `max_masks` are scored; the pilot's masks count too. Between them, how many
    masks were scored more."""

    def score(counts: Tensor) -> Generator[int, None, Curves]:
        plan = zip(sizes, counts.tolist(), strict=True)
        masks = draw_independent(plan, models[0].dim, generator, batch)
        curves: Curves = []
        for found in score_masks(models, masks, tape):
            if isinstance(found, int):
                yield found
            else:
                curves.append(found)
        return curves

    counts = torch.full((len(sizes),), PILOT)
    learned = yield from score(counts)
    masks_scored = int(counts.sum())
    yield Round([], masks_scored, math.inf)
    curves: Curves = []
    while masks_scored + 2 * len(sizes) <= max_masks:
        wanted = neyman(_deviations(curves or learned), target**2 / MARGIN)
        more = affordable(_missing(wanted, curves), max_masks - masks_scored)
        curves = _joined(curves, (yield from score(more)))
        masks_scored += int(more.sum())
        yield (state := Round(curves, masks_scored, _std_err(curves)))
        if state.reached(target):
            return


def _missing(wanted: Tensor, curves: Curves) -> Tensor:
    """Masks still to draw of each size: a twentieth of those drawn at least."""
    if not curves:
        return wanted
    drawn = torch.tensor([len(scores[0].values) for scores in curves])
    return torch.maximum(wanted - drawn, drawn // 20 + 1)


def affordable(counts: Tensor, most: int) -> Tensor:
    """Counts with a sum of `most` or less, at least two each."""
    total = int(counts.sum())
    if total <= most:
        return counts
    spare = most - 2 * len(counts)
    return (2 + (counts.double() * (spare / total)).floor()).long()


def _joined(curves: Curves, more: Curves) -> Curves:
    if not curves:
        return more
    return [
        tuple(own.joined(new) for own, new in zip(scores, added, strict=True))
        for scores, added in zip(curves, more, strict=True)
    ]


def _deviations(curves: Curves) -> Tensor:
    """The standard deviation of the first model's score over masks of each size, (sizes,)."""
    return torch.stack([scores[0].values.std() for scores in curves])


def _std_err(curves: Curves) -> float:
    errors = [s[0].values.std().item() / math.sqrt(len(s[0].values)) for s in curves]
    return math.hypot(*errors)
