"""Compute estimates from scored masks: the MPT curve, its sum, and their standard errors."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby

import torch
from torch import Tensor

from mptcore.estimation.estimate import (
    MIN_KURTOSIS,
    Estimate,
    Moments,
    total_of,
    variance_degrees,
)
from mptcore.estimation.masks import SizedMasks
from mptcore.estimation.model import SampledModel, TractableModel, VectorModel
from mptcore.estimation.prefetch import Prefetch
from mptcore.protocol.records import Record
from mptcore.runtime.device import sent
from mptcore.runtime.division import Shape
from mptcore.runtime.out_of_memory import in_halves
from mptcore.runtime.session import ScoreCache, Step, Work
from mptcore.specs import Masks


@dataclass(frozen=True)
class SizeScores:
    """The scores of the masks of one size, in the order they were drawn."""

    size: int
    values: Tensor  # (P,), float64, on the CPU
    joint: Tensor | None = None  # (P,), the joint score of each mask, where asked for
    grades: Tensor | None = (
        None  # (3, P), where sampled: the bias, the doubtful share, the variance
    )
    known_moments: Moments | None = field(default=None, compare=False)

    @cached_property
    def moments(self) -> Moments:
        """The moments of the values, which the point of a size and the sum of all sizes need."""
        return self.known_moments or Moments.of(self.values)

    def __sub__(self, other: "SizeScores") -> "SizeScores":
        """Return the differences, mask by mask."""
        values = self.values - other.values
        if self.grades is None or other.grades is None:
            return SizeScores(self.size, values)
        bias = self.grades[0] - other.grades[0]
        share = torch.maximum(self.grades[1], other.grades[1])
        variance = self.grades[2] + other.grades[2]
        return SizeScores(self.size, values, grades=torch.stack([bias, share, variance]))


NESTED_KURTOSIS = 9.0
"""Kurtosis of the totals of nested masks if one dimension is much wider than the others: it adds
−log u of a uniform place u in the permutation."""

ScoredSizes = Sequence[tuple[SizeScores, ...]]
"""The scores by each model, for each size."""


def with_difference(scores: tuple[SizeScores, ...]) -> tuple[SizeScores, ...]:
    """Return the scores by each model and, for two models, those of the first minus those of the
    second."""
    return (*scores, *(scores[0] - other for other in scores[1:]))


def score_masks(
    models: Sequence[VectorModel],
    batches: Iterable[SizedMasks],
    cache: ScoreCache,
    joint: bool = False,
    records_of: Callable[[tuple[SizeScores, ...]], Iterator[Record]] | None = None,
) -> Work[ScoredSizes]:
    """Score all masks by each model, size by size. With `joint`, compute the joint scores too.
    `records_of` returns the records of a size as soon as it is scored."""
    curve: list[tuple[SizeScores, ...]] = []
    parts: list[RunScores] = []
    last = 0

    def ended() -> Iterator[Step]:
        whole = parts[0] if len(parts) == 1 else RunScores.joined(parts)
        curve.append(whole.by_model(joint))
        parts.clear()
        return map(Step, records_of(curve[-1]) if records_of else ())

    for scored in score_batches(models, batches, cache, joint):
        if isinstance(scored, Step):
            yield scored
            continue
        batch, values = scored
        for part in batch.split(values, with_moments=records_of is not None):
            if parts and part.size != last:
                yield from ended()
            parts.append(part)
            last = part.size
    if parts:
        yield from ended()
    return curve


def score_batches(
    models: Sequence[VectorModel],
    batches: Iterable[SizedMasks],
    cache: ScoreCache,
    joint: bool = False,
) -> "Iterator[Step | tuple[PositionedMasks, Tensor]]":
    """Score all masks by each model, batch by batch. Yields the scores of each batch, as
    `Scorer.scores` returns them."""
    drawn = Prefetch(_positioned(batches, models[0].masks_scored))
    scorer = Scorer(models, joint, drawn.draw)
    for scored in cache.in_order(drawn, scorer.scores, scorer.shape):
        if scored is None:
            yield Step()
            continue
        yield scored
        batch, _ = scored
        for model in models:
            model.masks_scored = batch.first + len(batch)
        yield Step(masks=len(batch))


@dataclass(frozen=True, slots=True)
class RunScores:
    """The scores of adjacent masks of one size, and the moments of the first row by each model."""

    size: int
    values: Tensor  # (models, 1 to 4, P)
    moments: Sequence[Moments | None]  # (models,)

    @classmethod
    def joined(cls, parts: "Sequence[RunScores]") -> "RunScores":
        values = torch.cat([part.values for part in parts], dim=2)
        return cls(parts[0].size, values, [None] * len(values))

    def by_model(self, joint: bool) -> tuple[SizeScores, ...]:
        """Return the scores of each model. The second row has joint scores if `joint`; the last
        three of four rows have grades."""
        rows = self.values.shape[1]
        return tuple(
            SizeScores(
                self.size,
                self.values[i, 0],
                self.values[i, 1] if joint else None,
                self.values[i, 1:] if rows == 4 else None,
                moments,
            )
            for i, moments in enumerate(self.moments)
        )


@dataclass(frozen=True, slots=True)
class PositionedMasks:
    """Masks that are scored together, and the number of masks before them in the order of the
    run."""

    masks: SizedMasks
    first: int

    def __len__(self) -> int:
        return len(self.masks.masks)

    def split(self, values: Tensor, with_moments: bool) -> Iterator[RunScores]:
        """Yield the scores of each run of masks, from the scores (models, R, B) of all. Moments of
        runs of equal length are computed together."""
        runs = self.masks.runs
        if not with_moments:
            parts = torch.split(values, [count for _, count in runs], dim=2)
            for (size, _), part in zip(runs, parts, strict=True):
                yield RunScores(size, part, [None] * len(values))
            return
        numbers, first = values[:, 0].numpy(), 0
        for count, alike in groupby(runs, lambda run: run[1]):
            sizes = [size for size, _ in alike]
            end = first + count * len(sizes)
            rows = numbers[:, first:end].reshape(-1, count)  # (models · sizes, P)
            moments = Moments.of_each(rows)
            parts = torch.split(values[:, :, first:end], count, dim=2)
            for i, (size, part) in enumerate(zip(sizes, parts, strict=True)):
                yield RunScores(size, part, moments[i :: len(sizes)])
            first = end


def _positioned(batches: Iterable[SizedMasks], first: int) -> Iterator[PositionedMasks]:
    for batch in batches:
        yield PositionedMasks(batch, first)
        first += len(batch.masks)


@dataclass(frozen=True)
class Scorer:
    """Scores batches of masks by each model: (models, 1, B), (models, 2, B) with the joint scores,
    or (models, 4, B) with the grades of sampled models. `meanwhile` is called while a GPU computes
    them."""

    models: Sequence[VectorModel]
    joint: bool
    meanwhile: Callable[[], None]

    @property
    def is_graded(self) -> bool:
        return any(isinstance(model, SampledModel) for model in self.models)

    def shape(self, batch: PositionedMasks) -> Shape:
        rows = 4 if self.is_graded else 2 if self.joint else 1
        return len(self.models), rows, len(batch)

    @torch.no_grad()
    def scores(self, batch: PositionedMasks) -> Tensor:
        """Return the scores, which depend on the batch's position if they are sampled."""
        scores_of = _scores_and_joint if self.joint else _scores_alone
        if self.is_graded:
            scores_of = _graded_scores
        masks = sent(batch.masks.masks, self.models[0].device)
        for model in self.models:
            model.masks_scored = batch.first
        found = torch.stack([_in_parts(scores_of, model, masks) for model in self.models])
        self.meanwhile()
        return found.cpu()


def _in_parts(
    scores_of: Callable[[VectorModel, Tensor], Tensor], model: VectorModel, masks: Tensor
) -> Tensor:
    """Score a batch (B, D) in parts that fit in memory: (R, B)."""

    def too_large(part: Tensor) -> None:
        model.together = -(-len(part) // 2)

    parts = torch.split(masks, model.together or len(masks))
    found = [in_halves(partial(scores_of, model), part, too_large) for part in parts]
    return found[0] if len(found) == 1 else torch.cat(found, 1)


def _scores_alone(model: VectorModel, masks: Tensor) -> Tensor:  # (1, B)
    return model.scores(masks)[None]


def _graded_scores(model: VectorModel, masks: Tensor) -> Tensor:  # (4, B)
    if isinstance(model, SampledModel):
        return model.graded_scores(masks)
    return torch.nn.functional.pad(model.scores(masks)[None], (0, 0, 0, 3))


def _scores_and_joint(model: VectorModel, masks: Tensor) -> Tensor:  # (2, B)
    assert isinstance(model, TractableModel)
    return torch.stack([model.scores(masks), model.joint_scores(masks)])


def size_kurtosis(size: int, dim: int) -> float:
    """Return the kurtosis of the scores of one size if one dimension is much wider than the others:
    the kurtosis of the indicator that this dimension is masked, but at least MIN_KURTOSIS."""
    variance = size * (dim - size) / dim**2
    return max(MIN_KURTOSIS, 1 / variance - 3) if variance else MIN_KURTOSIS


def size_estimate(scores: SizeScores, masks: Masks, kurtosis: float = MIN_KURTOSIS) -> Estimate:
    """Estimate S(m). If all masks of a size were scored, only sampled scores contribute an
    error."""
    if masks.design == "exhaustive" or masks.windows_per_permutation > 1:
        estimate = mask_mean(scores.values, masks, kurtosis)
    else:
        estimate = Estimate.of_moments(scores.moments, kurtosis=kurtosis)
    if masks.design != "exhaustive" or scores.grades is None:
        return estimate
    return replace(estimate, std_err=scores.grades[2].sum().sqrt().item() / estimate.n)


def mask_mean(values: Tensor, masks: Masks, kurtosis: float = MIN_KURTOSIS) -> Estimate:
    """Estimate the mean of values (P,) over masks of one size, from the replicates of the
    design."""
    if masks.design == "exhaustive":
        return Estimate(values.mean().item(), 0.0, len(values))
    return Estimate.of(_replicates(values, masks), len(values), kurtosis)


def cumulative_estimate(curve: Sequence[SizeScores], masks: Masks) -> Estimate:
    """Estimate the sum of S(m) over the sizes of a curve: Eq. (5) of the paper if the sizes are
    1..D.

    Sizes are independent, so their variances add up. In the nested design each permutation gives
    one total.
    """
    if masks.design == "nested":
        totals = torch.stack([scores.values for scores in curve]).sum(0)
        return Estimate.of(totals, sum(len(scores.values) for scores in curve), NESTED_KURTOSIS)
    return total_of([size_estimate(scores, masks) for scores in curve])


def convergence(
    curve: Sequence[SizeScores], masks: Masks, kurtosis: float = MIN_KURTOSIS
) -> list[Estimate]:
    """Estimate the sum of S(m) from the first p masks of each size, for p = 1..P. There are no
    standard errors if the masks of one size are dependent."""
    values = torch.stack([scores.values for scores in curve])  # (sizes, P)
    if masks.design == "nested":
        values, kurtosis = values.sum(0, keepdim=True), NESTED_KURTOSIS
    count = torch.arange(1, values.shape[1] + 1, dtype=torch.float64)
    means = (values.cumsum(1) / count).sum(0).tolist()
    if masks.windows_per_permutation > 1:
        return [Estimate(mean, None, i) for i, mean in enumerate(means, 1)]
    centred = values - values.mean(1, keepdim=True)  # against cancellation
    drift = centred.cumsum(1) / count
    squares = (centred.square().cumsum(1) - count * drift.square()).clamp(min=0)
    errors = (squares / (count - 1) / count).sum(0).sqrt().tolist()  # NaN at p = 1
    known = enumerate(zip(means[1:], errors[1:], strict=True), 2)
    rest = [
        Estimate(mean, error, p, variance_degrees(p - 1, kurtosis)) for p, (mean, error) in known
    ]
    return [Estimate(means[0], None, 1), *rest]


def _replicates(values: Tensor, masks: Masks) -> Tensor:
    """Return independent means, (R,)."""
    return values.view(-1, masks.windows_per_permutation).mean(1)  # (R, windows) to (R,)
