"""From scored masks to estimates: the MPT curve, its sum, and their standard errors."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.masks import draw_masks, windows_per_permutation
from mptcore.models import MaskedModel, TractableModel
from mptcore.specs import FixedSize, Masks

ONE_DRAW = "one draw gives no standard error"
DEPENDENT = "masks of one permutation depend on each other"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its Monte Carlo standard error (null where one draw gives none), from n masks."""

    mean: float
    std_err: float | None
    n: int

    def scaled(self, factor: float) -> "Estimate":
        std_err = None if self.std_err is None else abs(factor) * self.std_err
        return Estimate(factor * self.mean, std_err, self.n)

    def shifted(self, offset: float) -> "Estimate":
        return Estimate(self.mean + offset, self.std_err, self.n)


@dataclass(frozen=True, slots=True)
class SizeScores:
    """The score of each mask of one size, in the order drawn."""

    size: int
    values: Tensor  # (P,), float64, on the CPU
    joint: Tensor | None = None  # (P,), the joint score of each mask, where asked for


def score_masks(
    model: MaskedModel, masks: Masks, generator: torch.Generator, max_masks: int
) -> Iterator[SizeScores]:
    """The scores of all masks of a spec, size by size; the masks of several sizes are scored
    together, `max_masks` at a time. One fixed size is scored jointly too, if the model can."""
    joint = isinstance(model, TractableModel) and isinstance(masks, FixedSize)
    drawn = draw_masks(masks, model.dim, generator, max_masks)
    scored = itertools.chain.from_iterable(
        _score_together(model, parts, joint) for parts in _batches(drawn, max_masks)
    )
    for size, parts in itertools.groupby(scored, key=lambda part: part[0]):
        values = torch.cat([part[1] for part in parts], dim=1)
        yield SizeScores(size, values[0], values[1] if joint else None)


def _batches(
    drawn: Iterator[tuple[int, Tensor]], max_masks: int
) -> Iterator[list[tuple[int, Tensor]]]:
    """Masks (size, (b, D)), gathered into lists of at most `max_masks` masks."""
    waiting: list[tuple[int, Tensor]] = []
    for size, masked in drawn:
        if waiting and sum(len(part) for _, part in waiting) + len(masked) > max_masks:
            yield waiting
            waiting = []
        waiting.append((size, masked))
    yield waiting


def _score_together(
    model: MaskedModel, parts: list[tuple[int, Tensor]], joint: bool
) -> Iterator[tuple[int, Tensor]]:
    """(size, scores (1, b), or with the joint scores (2, b)) of each part."""
    masked = torch.cat([part for _, part in parts]).to(model.device)
    values = [model.scores(masked)]
    if joint:
        assert isinstance(model, TractableModel)
        values.append(model.joint_scores(masked))
    lengths = [len(part) for _, part in parts]
    split = torch.split(torch.stack(values).cpu(), lengths, dim=1)
    return zip((size for size, _ in parts), split, strict=True)


def size_estimate(scores: SizeScores, masks: Masks) -> Estimate:
    """S(m)."""
    return mask_mean(scores.values, masks)


def mask_mean(values: Tensor, masks: Masks) -> Estimate:
    """The mean of a value (P,) over masks of one size, by the replicates that the design gives."""
    if masks.design == "exhaustive":
        return Estimate(values.mean().item(), 0.0, len(values))
    return _from_replicates(_replicates(values, masks), len(values))


def cumulative_estimate(curve: list[SizeScores], masks: Masks) -> Estimate:
    """The sum of S(m) over the sizes of a curve: Eq. (5) of the paper where these are 1..D.

    Sizes are independent of each other, so their variances add up; but for the nested design,
    where each permutation gives one total.
    """
    n = sum(len(scores.values) for scores in curve)
    if masks.design == "nested":
        totals = torch.stack([scores.values for scores in curve]).sum(0)
        return _from_replicates(totals, n)
    estimates = [size_estimate(scores, masks) for scores in curve]
    errors = [estimate.std_err for estimate in estimates if estimate.std_err is not None]
    complete = len(errors) == len(estimates)
    std_err = math.hypot(*errors) if complete else None
    return Estimate(math.fsum(estimate.mean for estimate in estimates), std_err, n)


def convergence(curve: list[SizeScores], masks: Masks) -> tuple[Tensor, Tensor | None]:
    """The sum of S(m) from the first p masks of each size for p = 1..P, (P,), and its standard
    error (P,), NaN at p = 1; none where the masks of one size depend on each other."""
    values = torch.stack([scores.values for scores in curve])  # (sizes, P)
    if masks.design == "nested":
        values = values.sum(0, keepdim=True)
    count = torch.arange(1, values.shape[1] + 1, dtype=torch.float64)
    mean = values.cumsum(1) / count
    if masks.design == "balanced" and windows_per_permutation(masks.per_size) > 1:
        return mean.sum(0), None
    centred = values - values.mean(1, keepdim=True)  # against cancellation
    drift = centred.cumsum(1) / count
    variance = ((centred.square().cumsum(1) - count * drift.square()) / (count - 1)).clamp(min=0)
    return mean.sum(0), (variance.sum(0) / count).sqrt()


def _replicates(values: Tensor, masks: Masks) -> Tensor:
    """Means that are independent of each other, (R,)."""
    if masks.design != "balanced":
        return values
    by_permutation: Tensor = values.view(-1, windows_per_permutation(masks.per_size))
    return by_permutation.mean(1)


def _from_replicates(replicates: Tensor, n: int) -> Estimate:
    count = len(replicates)
    std_err = (replicates.std() / math.sqrt(count)).item() if count > 1 else None
    return Estimate(replicates.mean().item(), std_err, n)
