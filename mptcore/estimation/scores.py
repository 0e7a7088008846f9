"""From scored masks to estimates: the MPT curve, its sum, and their standard errors."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.estimation.masks import MaskBatch
from mptcore.estimation.model import Evidence, MaskedModel, TractableModel
from mptcore.runtime.session import Tape
from mptcore.specs import Masks

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

    def beyond(self, other: Evidence) -> "Estimate":
        """The difference from an independent estimate."""
        std_err = None if self.std_err is None else math.hypot(self.std_err, other.std_err)
        return Estimate(self.mean - other.value, std_err, self.n)


@dataclass(frozen=True, slots=True)
class SizeScores:
    """The score of each mask of one size, in the order drawn."""

    size: int
    values: Tensor  # (P,), float64, on the CPU
    joint: Tensor | None = None  # (P,), the joint score of each mask, where asked for

    def __sub__(self, other: "SizeScores") -> "SizeScores":
        """The differences, mask by mask."""
        return SizeScores(self.size, self.values - other.values)

    def joined(self, more: "SizeScores") -> "SizeScores":
        """These masks and more of the same size."""
        return SizeScores(self.size, torch.cat([self.values, more.values]))


def score_masks(
    models: Sequence[MaskedModel],
    batches: Iterator[MaskBatch],
    tape: Tape,
    joint: bool = False,
) -> Iterator[int | tuple[SizeScores, ...]]:
    """The scores of all masks by each model, size by size; with `joint` the joint scores too.
    After each batch, how many masks it scored: a run may rest there."""

    def of_size(size: int, parts: list[Tensor]) -> tuple[SizeScores, ...]:
        values = torch.cat(parts, dim=2)  # (models, 1 or 2, P)
        return tuple(SizeScores(size, own[0], own[1] if joint else None) for own in values)

    parts: list[Tensor] = []
    last = 0
    for batch in batches:
        for size, part in _score(models, batch, tape, joint):
            if parts and size != last:
                yield of_size(last, parts)
                parts = []
            parts.append(part)
            last = size
        yield len(batch.masked)
    if parts:
        yield of_size(last, parts)


@torch.no_grad()
def _score(
    models: Sequence[MaskedModel], batch: MaskBatch, tape: Tape, joint: bool
) -> list[tuple[int, Tensor]]:
    """(size, scores (models, 1, b), or with the joint scores (models, 2, b)) of each run."""
    if tape.remembers:
        for model in models:
            model.pass_over(len(batch.masked))
    values = tape.scored(
        lambda: torch.stack([_scores_of(model, batch.masked, joint) for model in models])
    )
    lengths = [count for _, count in batch.runs]
    split = torch.split(values, lengths, dim=2)
    return [(size, part) for (size, _), part in zip(batch.runs, split, strict=True)]


def _scores_of(model: MaskedModel, masked: Tensor, joint: bool) -> Tensor:  # (1 or 2, B)
    masked = masked.to(model.device)
    values = [model.scores(masked)]
    if joint:
        assert isinstance(model, TractableModel)
        values.append(model.joint_scores(masked))
    return torch.stack(values).cpu()


def size_estimate(scores: SizeScores, masks: Masks) -> Estimate:
    """S(m)."""
    return mask_mean(scores.values, masks)


def mask_mean(values: Tensor, masks: Masks) -> Estimate:
    """The mean of a value (P,) over masks of one size, by the replicates that the design gives."""
    if masks.design == "exhaustive":
        return Estimate(values.mean().item(), 0.0, len(values))
    return _from_replicates(_replicates(values, masks), len(values))


def cumulative_estimate(curve: Sequence[SizeScores], masks: Masks) -> Estimate:
    """The sum of S(m) over the sizes of a curve: Eq. (5) of the paper where these are 1..D.

    Sizes are independent of each other, so their variances add up; but for the nested design,
    where each permutation gives one total.
    """
    n = sum(len(scores.values) for scores in curve)
    if masks.design == "nested":
        totals = torch.stack([scores.values for scores in curve]).sum(0)
        return _from_replicates(totals, n)
    return total_of([size_estimate(scores, masks) for scores in curve])


def total_of(estimates: Sequence[Estimate]) -> Estimate:
    """The sum of estimates that are independent of each other."""
    errors = [estimate.std_err for estimate in estimates if estimate.std_err is not None]
    std_err = math.hypot(*errors) if len(errors) == len(estimates) else None
    n = sum(estimate.n for estimate in estimates)
    return Estimate(math.fsum(estimate.mean for estimate in estimates), std_err, n)


def convergence(curve: Sequence[SizeScores], masks: Masks) -> tuple[Tensor, Tensor | None]:
    """The sum of S(m) from the first p masks of each size for p = 1..P, (P,), and its standard
    error (P,), NaN at p = 1; none where the masks of one size depend on each other."""
    values = torch.stack([scores.values for scores in curve])  # (sizes, P)
    if masks.design == "nested":
        values = values.sum(0, keepdim=True)
    count = torch.arange(1, values.shape[1] + 1, dtype=torch.float64)
    mean = values.cumsum(1) / count
    if masks.windows_per_permutation > 1:
        return mean.sum(0), None
    centred = values - values.mean(1, keepdim=True)  # against cancellation
    drift = centred.cumsum(1) / count
    variance = ((centred.square().cumsum(1) - count * drift.square()) / (count - 1)).clamp(min=0)
    return mean.sum(0), (variance.sum(0) / count).sqrt()


def _replicates(values: Tensor, masks: Masks) -> Tensor:
    """Means that are independent of each other, (R,)."""
    windows = masks.windows_per_permutation
    return values if windows == 1 else values.view(-1, windows).mean(1)


def _from_replicates(replicates: Tensor, n: int) -> Estimate:
    count = len(replicates)
    std_err = (replicates.std() / math.sqrt(count)).item() if count > 1 else None
    return Estimate(replicates.mean().item(), std_err, n)
