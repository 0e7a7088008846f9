"""Compute estimates from scored masks: the MPT curve, its sum, and their standard errors."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, repeat

import torch
from torch import Tensor

from mptcore.estimation.estimate import (
    MIN_KURTOSIS,
    Estimate,
    Moments,
    total_of,
    variance_degrees,
)
from mptcore.estimation.masks import MaskBatch
from mptcore.estimation.model import Model
from mptcore.estimation.prefetch import Prefetch
from mptcore.protocol.records import Record
from mptcore.runtime.device import sent
from mptcore.runtime.out_of_memory import in_halves
from mptcore.runtime.state import Records, RunState, Shape
from mptcore.specs import Masks


@dataclass(frozen=True)
class SizeScores:
    """The scores of equally many masks of each of some sizes, in the order they were drawn."""

    sizes: Sequence[int]  # (S,)
    values: Tensor  # (S, P), float64, on the CPU
    joint: Tensor | None = None  # (S, P), the joint score of each mask, where asked for
    grades: Tensor | None = (
        None  # (3, S, P), where sampled: the bias, the doubtful share, the variance
    )

    @cached_property
    def moments(self) -> list[Moments]:
        """The moments of each size, which its point and the sum of all sizes need."""
        return Moments.of_each(self.values.numpy())

    def __sub__(self, other: "SizeScores") -> "SizeScores":
        """Return the differences, mask by mask."""
        values = self.values - other.values
        if self.grades is None or other.grades is None:
            return SizeScores(self.sizes, values)
        bias = self.grades[0] - other.grades[0]
        share = torch.maximum(self.grades[1], other.grades[1])
        variance = self.grades[2] + other.grades[2]
        return SizeScores(self.sizes, values, grades=torch.stack([bias, share, variance]))


NESTED_KURTOSIS = 9.0
"""Kurtosis of the totals of nested masks if one dimension is much wider than the others: it adds
−log u of a uniform place u in the permutation."""

ScoredSizes = Sequence[tuple[SizeScores, ...]]
"""The scores by each model, for all sizes in order."""


def with_difference(scores: tuple[SizeScores, ...]) -> tuple[SizeScores, ...]:
    """Return the scores by each model and, for two models, those of the first minus those of the
    second."""
    return (*scores, *(scores[0] - other for other in scores[1:]))


def score_masks(
    models: Sequence[Model],
    batches: Iterable[MaskBatch],
    state: RunState,
    joint: bool = False,
    records_of: Callable[[tuple[SizeScores, ...]], Iterator[Record]] | None = None,
) -> Records[ScoredSizes]:
    """Score all masks by each model, size by size. With `joint`, compute the joint scores too.
    `records_of` returns the records of sizes as soon as they are scored."""
    curve: list[tuple[SizeScores, ...]] = []
    whole = WholeSizes()

    def ended(sizes: Sequence[int], values: Tensor) -> Iterator[Record]:
        curve.append(by_model(sizes, values, joint))
        return records_of(curve[-1]) if records_of else iter(())

    for scored in score_batches(models, batches, state, joint):
        if scored is None:
            yield None
            continue
        batch, scores = scored
        for sizes, values in whole.add(batch.runs, scores):
            yield from ended(sizes, values)
    for sizes, values in whole.last():
        yield from ended(sizes, values)
    return curve


def score_batches(
    models: Sequence[Model],
    batches: Iterable[MaskBatch],
    state: RunState,
    joint: bool = False,
    first: int = 0,
) -> "Iterator[tuple[MaskBatch, Tensor] | None]":
    """Score all masks by each model, batch by batch, after `first` others. Yields the scores of
    each batch, as `Scorer.scores` returns them."""
    drawn = Prefetch(_positioned(batches, first))
    scorer = Scorer(models, joint, drawn.draw)
    for scored in state.scored(drawn, scorer.scores, scorer.shape):
        yield scored
        state.count(len(scored[0]))
        yield None


class WholeSizes:
    """Joins the scores of batches to those of whole sizes. A batch may end within a size."""

    def __init__(self) -> None:
        self._size = 0
        self._parts: list[Tensor] = []

    def add(
        self, runs: Sequence[tuple[int, int]], scores: Tensor
    ) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Add the scores (models, R, B) of a batch, given each size and the number of its masks.
        Yield sizes that are whole, those with equally many masks together, and their scores
        (models, R, S, P)."""
        (first, count), *rest = runs
        if first != self._size:
            yield from self.last()
        self._size = first
        self._parts.append(scores[:, :, :count])
        if not rest:
            return
        yield from self.last()
        self._size, in_last = rest.pop()
        end = scores.shape[2] - in_last
        self._parts.append(scores[:, :, end:])
        middle = scores[:, :, count:end]
        for masks, alike in groupby(rest, lambda run: run[1]):
            sizes = [size for size, _ in alike]
            own, middle = middle.tensor_split([masks * len(sizes)], 2)
            yield sizes, own.view(*own.shape[:2], len(sizes), masks)

    def last(self) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Yield the last size, if there is one."""
        if self._parts:
            yield [self._size], torch.cat(self._parts, 2)[:, :, None]
            self._parts.clear()


def by_model(sizes: Sequence[int], values: Tensor, joint: bool = False) -> tuple[SizeScores, ...]:
    """Return the scores of each model, from (models, 1 to 4, S, P). The second row has joint scores
    if `joint`; the last three of four rows have grades."""
    has_grades = values.shape[1] == 4
    return tuple(
        SizeScores(sizes, own[0], own[1] if joint else None, own[1:] if has_grades else None)
        for own in values
    )


def _positioned(batches: Iterable[MaskBatch], first: int) -> Iterator[MaskBatch]:
    for batch in batches:
        yield replace(batch, first=first)
        first += len(batch)


@dataclass(frozen=True)
class Scorer:
    """Scores batches of masks by each model: (models, 1, B), (models, 2, B) with the joint scores,
    or (models, 4, B) with the grades of sampled models. `meanwhile` is called while a GPU computes
    them."""

    models: Sequence[Model]
    joint: bool
    meanwhile: Callable[[], None]

    @property
    def is_graded(self) -> bool:
        return any(model.is_sampled for model in self.models)

    def shape(self, batch: MaskBatch) -> Shape:
        rows = 4 if self.is_graded else 2 if self.joint else 1
        return len(self.models), rows, len(batch)

    @torch.no_grad()
    def scores(self, batch: MaskBatch) -> Tensor:
        """Return the scores, which depend on the batch's position if they are sampled."""
        scores_of = _scores_and_joint if self.joint else _scores_alone
        if self.is_graded:
            scores_of = _sampled_scores
        found = []
        for model in self.models:
            masks = sent(batch.masks, model.device)
            found.append(_in_parts(scores_of, model, masks, batch.first))
        self.meanwhile()
        return torch.stack([scores.cpu() for scores in found])


def _in_parts(
    scores_of: Callable[[Model, Tensor, int], Tensor], model: Model, masks: Tensor, first: int
) -> Tensor:
    """Score a batch (B, D) in parts that fit in memory: (R, B)."""

    def too_large(part: Tensor) -> None:
        model.masks_that_fit = -(-len(part) // 2)

    def scored(part: Tensor) -> Tensor:
        nonlocal first
        scores = scores_of(model, part, first)
        first += len(part)  # afterwards, because masks are scored again if memory runs out
        return scores

    parts = torch.split(masks, model.masks_that_fit or len(masks))
    found = [in_halves(scored, part, too_large) for part in parts]
    return found[0] if len(found) == 1 else torch.cat(found, 1)


def _scores_alone(model: Model, masks: Tensor, first: int) -> Tensor:  # (1, B)
    return model.scores(masks)[None]


def _sampled_scores(model: Model, masks: Tensor, first: int) -> Tensor:  # (4, B)
    if model.is_sampled:
        return model.sampled_scores(masks, first)
    return torch.nn.functional.pad(model.scores(masks)[None], (0, 0, 0, 3))


def _scores_and_joint(model: Model, masks: Tensor, first: int) -> Tensor:  # (2, B)
    return torch.stack([model.scores(masks), model.joint_scores(masks)])


def size_kurtosis(size: int, dim: int) -> float:
    """Return the kurtosis of the scores of one size if one dimension is much wider than the others:
    the kurtosis of the indicator that this dimension is masked, but at least MIN_KURTOSIS."""
    variance = size * (dim - size) / dim**2
    return max(MIN_KURTOSIS, 1 / variance - 3) if variance else MIN_KURTOSIS


def size_estimates(
    scores: SizeScores, masks: Masks, kurtoses: Iterable[float] = repeat(MIN_KURTOSIS)
) -> list[Estimate]:
    """Estimate S(m) of each size, with the kurtosis that its scores may have. If all masks of a
    size were scored, only sampled scores contribute an error."""
    count = scores.values.shape[1]
    if masks.design != "exhaustive":
        is_each_a_replicate = masks.windows_per_permutation == 1
        moments = scores.moments if is_each_a_replicate else _of_replicates(scores.values, masks)
        pairs = zip(moments, kurtoses, strict=False)
        return [Estimate.of_moments(own, count, kurtosis) for own, kurtosis in pairs]
    errors = torch.zeros(len(scores.sizes), dtype=torch.float64)
    if scores.grades is not None:
        errors = scores.grades[2].sum(1).sqrt() / count
    means = scores.values.mean(1).tolist()
    return [Estimate(mean, e, count) for mean, e in zip(means, errors.tolist(), strict=True)]


def cumulative_estimate(curve: Sequence[SizeScores], masks: Masks) -> Estimate:
    """Estimate the sum of S(m) over the sizes of a curve: Eq. (5) of the paper if the sizes are
    1..D.

    Sizes are independent, so their variances add up. In the nested design each permutation gives
    one total.
    """
    if masks.design == "nested":
        values = torch.cat([scores.values for scores in curve])  # (D, P)
        return Estimate.of(values.sum(0), values.numel(), NESTED_KURTOSIS)
    return total_of([one for scores in curve for one in size_estimates(scores, masks)])


def convergence(
    curve: Sequence[SizeScores], masks: Masks, kurtosis: float = MIN_KURTOSIS
) -> list[Estimate]:
    """Estimate the sum of S(m) from the first p masks of each size, for p = 1..P. There are no
    standard errors if the masks of one size are dependent."""
    values = torch.cat([scores.values for scores in curve])  # (D, P)
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


def _of_replicates(values: Tensor, masks: Masks) -> list[Moments]:
    """Return the moments of the means over the windows of each permutation, which are independent,
    for each size of (S, P)."""
    means = values.view(len(values), -1, masks.windows_per_permutation).mean(2)
    return Moments.of_each(means.numpy())
