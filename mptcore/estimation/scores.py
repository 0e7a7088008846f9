"""Score batches of masks, and estimate from the scores the MPT curve and its sum."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, repeat

import torch
from torch import Tensor

from mptcore.estimation.estimate import MIN_KURTOSIS, Estimate, total_of, variance_degrees
from mptcore.estimation.masks import MaskBatch
from mptcore.estimation.model import Model
from mptcore.estimation.not_final import DOUBTFUL_ERROR
from mptcore.estimation.prefetch import Prefetch
from mptcore.runtime.device import to_device
from mptcore.runtime.out_of_memory import halve_on_oom
from mptcore.runtime.state import RunState, Shape
from mptcore.specs import Masks

NESTED_KURTOSIS = 9.0
"""Kurtosis of the totals of nested masks if one dimension is much wider than the others: it adds
−log u of a uniform place u in the permutation."""
SAMPLED_ROWS = 4
"""Number of rows of sampled scores: the score, its bias, the doubtful share, the variance."""


@dataclass(frozen=True)
class SizeScores:
    """The scores of equally many masks of each of some sizes, in the order they were drawn, on the
    CPU. `values` are by model and, for two models, the first minus the second. Their R rows are the
    score; the score and the joint score; or the SAMPLED_ROWS."""

    sizes: Sequence[int]  # (S,)
    values: Tensor  # (models + difference, R, S, P), float64

    @property
    def are_sampled(self) -> bool:
        return self.values.shape[1] == SAMPLED_ROWS


def score_sizes(
    models: Sequence[Model], batches: Iterable[MaskBatch], state: RunState, joint: bool = False
) -> Iterator[SizeScores | None]:
    """Score all masks by each model. Yields the scores of sizes as soon as these are whole, and
    None after each batch. With `joint`, the joint scores are computed too."""
    whole = WholeSizes()
    for batch, scores in score_batches(models, batches, state, joint):
        yield from whole.add(batch.size_counts, scores)
        state.count(len(batch))
        yield None
    yield from whole.last()


def score_batches(
    models: Sequence[Model],
    batches: Iterable[MaskBatch],
    state: RunState,
    joint: bool = False,
    first: int = 0,
) -> Iterator[tuple[MaskBatch, Tensor]]:
    """Yield each batch of masks, which follow `first` others, with its scores by each model,
    (models, R, B): R is 4 if any model is sampled, 2 with `joint`, else 1."""
    prefetched = Prefetch(_positioned(batches, first))
    is_sampled = any(model.is_sampled for model in models)
    rows = SAMPLED_ROWS if is_sampled else 2 if joint else 1

    @torch.no_grad()
    def score(batch: MaskBatch) -> Tensor:
        scores = []
        for model in models:
            scores.append(_scores_in_parts(model, batch, rows))
        prefetched.draw()  # while a GPU computes
        return torch.stack([of_model.cpu() for of_model in scores])

    def shape(batch: MaskBatch) -> Shape:
        return len(models), rows, len(batch)

    return state.scored(prefetched, score, shape)


def _positioned(batches: Iterable[MaskBatch], first: int) -> Iterator[MaskBatch]:
    for batch in batches:
        yield replace(batch, first=first)
        first += len(batch)


def _scores_in_parts(model: Model, batch: MaskBatch, rows: int) -> Tensor:
    """Return the scores of a batch by one model, computed in parts that fit in memory: (R, B)."""
    first = batch.first

    def scores_of(part: Tensor) -> Tensor:
        nonlocal first
        if rows == SAMPLED_ROWS and model.is_sampled:
            scores = model.sampled_scores(part, first)
        else:
            scores = model.scores(part)[None]
            if rows == 2:
                scores = torch.cat([scores, model.joint_scores(part)[None]])
            elif rows == SAMPLED_ROWS:  # exact
                scores = torch.nn.functional.pad(scores, (0, 0, 0, SAMPLED_ROWS - 1))
        first += len(part)  # afterwards, because masks are scored again if memory runs out
        return scores

    def too_large(part: Tensor) -> None:
        model.masks_that_fit = -(-len(part) // 2)

    masks = to_device(batch.masks, model.device)
    scores = []
    for part in torch.split(masks, model.masks_that_fit or len(masks)):
        scores.append(halve_on_oom(scores_of, part, too_large))
    return scores[0] if len(scores) == 1 else torch.cat(scores, 1)


class WholeSizes:
    """Joins the scores of batches to those of whole sizes. A batch may end within a size."""

    def __init__(self) -> None:
        self._size = 0
        self._parts: list[Tensor] = []

    def add(self, size_counts: Sequence[tuple[int, int]], scores: Tensor) -> Iterator[SizeScores]:
        """Add the scores (models, R, B) of a batch, given each size and the number of its masks.
        Yield the scores of sizes that are whole, those with equally many masks together."""
        (first, count), *others = size_counts
        if first != self._size:
            yield from self.last()
        self._size = first
        self._parts.append(scores[:, :, :count])
        if not others:
            return
        yield from self.last()
        self._size, in_last = others.pop()
        end = scores.shape[2] - in_last
        self._parts.append(scores[:, :, end:])
        middle = scores[:, :, count:end]
        for masks, alike in groupby(others, lambda run: run[1]):
            sizes = [size for size, _ in alike]
            values, middle = middle.tensor_split([masks * len(sizes)], 2)
            values = values.view(*values.shape[:2], len(sizes), masks)
            yield SizeScores(sizes, with_difference(values))

    def last(self) -> Iterator[SizeScores]:
        """Yield the scores of the last size, if there is one."""
        if self._parts:
            values = torch.cat(self._parts, 2)[:, :, None]
            yield SizeScores([self._size], with_difference(values))
            self._parts.clear()


def with_difference(values: Tensor) -> Tensor:
    """Return scores (models, R, ...) and, for two models, the first minus the second. The
    difference of sampled scores is as doubtful as the more doubtful of the two, and has the
    variance of both."""
    if len(values) == 1:
        return values
    difference = values[:1] - values[1:]
    if values.shape[1] == SAMPLED_ROWS:
        difference[:, 2] = values[:, 2].amax(0)
        difference[:, 3] = values[:, 3].sum(0)
    return torch.cat([values, difference])


def size_kurtosis(size: int, dim: int) -> float:
    """Return the kurtosis of the scores of one size if one dimension is much wider than the others:
    the kurtosis of the indicator that this dimension is masked, but at least MIN_KURTOSIS."""
    variance = size * (dim - size) / dim**2
    return max(MIN_KURTOSIS, 1 / variance - 3) if variance else MIN_KURTOSIS


def size_estimates(
    scores: Tensor, masks: Masks, kurtoses: Iterable[float] = repeat(MIN_KURTOSIS)
) -> list[Estimate]:
    """Estimate S(m) of each size from the scores (R, S, P) of one model, or of the difference, with
    the kurtosis that the scores of each size may have."""
    if masks.design == "exhaustive":
        estimates = _enumerated(scores)
    else:
        estimates = _drawn(scores[0], masks, kurtoses)
    if len(scores) < SAMPLED_ROWS:
        return estimates
    of_sizes = zip(estimates, scores.unbind(1), strict=True)
    return [with_doubt_of(estimate, of_size) for estimate, of_size in of_sizes]


def with_doubt_of(estimate: Estimate, scores: Tensor) -> Estimate:
    """Return an estimate with the mean bias and the doubtful share of the sampled scores (4, P) on
    which it rests."""
    bias, share = scores[1:3].mean(1).tolist()
    return replace(estimate, bias=bias, doubtful=share, doubt=DOUBTFUL_ERROR * share)


def _drawn(values: Tensor, masks: Masks, kurtoses: Iterable[float]) -> list[Estimate]:
    """Estimate S(m) from the scores (S, P) of masks that were drawn. The means over the windows of
    each permutation are independent."""
    windows, count = masks.windows_per_permutation, values.shape[1]
    if windows > 1:
        values = values.view(len(values), -1, windows).mean(2)
    return Estimate.of_rows(values.numpy(), kurtoses, count)


def _enumerated(scores: Tensor) -> list[Estimate]:
    """Return S(m) from the scores (R, S, P) of all masks. Only the variances of sampled scores
    contribute an error."""
    _, sizes, count = scores.shape
    errors = torch.zeros(sizes, dtype=torch.float64)
    if len(scores) == SAMPLED_ROWS:
        errors = scores[3].sum(1).sqrt() / count
    means = scores[0].mean(1).tolist()
    return [Estimate(mean, e, count) for mean, e in zip(means, errors.tolist(), strict=True)]


def cumulative_estimate(curve: Sequence[Tensor], masks: Masks) -> Estimate:
    """Estimate the sum of S(m) over the sizes of a curve, given as parts (R, S, P): Eq. (5) of the
    paper if the sizes are 1..D.

    Sizes are independent, so their variances add up. In the nested design each permutation gives
    one total.
    """
    total = total_of([e for scores in curve for e in size_estimates(scores, masks)])
    if masks.design != "nested":
        return total
    values = torch.cat([scores[0] for scores in curve])  # (D, P)
    return Estimate.of(values.sum(0), values.numel(), NESTED_KURTOSIS).with_doubts_of(total)


def convergence(values: Tensor, masks: Masks, kurtosis: float = MIN_KURTOSIS) -> list[Estimate]:
    """Estimate the sum of S(m) from the scores (S, P) of the first p masks of each size, for p =
    1..P. There are no standard errors if the masks of one size are dependent."""
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
    after_first = enumerate(zip(means[1:], errors[1:], strict=True), 2)
    return [
        Estimate(means[0], None, 1),
        *(Estimate(m, e, p, variance_degrees(p - 1, kurtosis)) for p, (m, e) in after_first),
    ]
