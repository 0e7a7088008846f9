"""Scoring one seed's models with masks, and the records that tell of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.estimation.allocation import (
    Draw,
    sample_to_target,
    smoothed,
    target_records,
)
from mptcore.estimation.estimate import ONE_DRAW, Estimate, lml_metrics, metric, point
from mptcore.estimation.masks import draw_independent, draw_masks
from mptcore.estimation.model import TractableModel, VectorModel
from mptcore.estimation.scores import (
    ScoredSizes,
    SizeScores,
    convergence,
    cumulative_estimate,
    mask_mean,
    score_masks,
    size_estimate,
    with_difference,
)
from mptcore.protocol.records import Labels, Log, Point, Record
from mptcore.runtime.session import ScoreCache, Step, Work
from mptcore.specs import AllSizes, FixedSize
from mptcore.specs.evaluate import MaskEvaluation, pilot_masks

BATCH_BYTES = 4 * 2**20
"""Memory for the masks that are scored together: about what a processor's caches hold."""
SMOOTHED_OVER = 3
"""Neighbouring sizes whose variances are averaged for the plan of a target."""
DEPENDENT = "masks of one permutation depend on each other"


@dataclass(frozen=True)
class Evaluation:
    """The models that are scored on the same masks: the model, and the baseline if there is one."""

    spec: MaskEvaluation
    models: Mapping[str, VectorModel]
    labels: Labels
    cache: ScoreCache
    memory_bytes: int | None = None

    @property
    def first(self) -> VectorModel:
        return next(iter(self.models.values()))

    @property
    def batch(self) -> int:
        """Masks scored together."""
        one_mask = max(model.bytes_per_mask for model in self.models.values())
        if self.memory_bytes is not None:
            return max(1, self.memory_bytes // one_mask)
        least = max(model.least_batch for model in self.models.values())
        return max(least, BATCH_BYTES // one_mask)

    def labels_of(self, model: str) -> Labels:
        """The label `model` only tells models apart."""
        return self.labels if len(self.models) == 1 else {**self.labels, "model": model}

    def records(self, generator: torch.Generator) -> Work[None]:
        """Scores, and what follows from them; masks are drawn from the generator."""
        for name, model in self.models.items():
            if model.note is not None:
                yield Step(Log("info", f"{_labelled(self.labels_of(name))}: {model.note}"))
        if self.spec.target_std_err is None:
            yield from self._score_all(generator)
        else:
            yield from self._score_to_target(generator, self.spec.target_std_err)

    def _score_all(self, generator: torch.Generator) -> Work[None]:
        masks, models = self.spec.masks, list(self.models.values())
        batches = draw_masks(masks, self.first.dim, generator, self.batch)
        tractable = all(isinstance(model, TractableModel) for model in models)
        joint = isinstance(masks, FixedSize) and tractable

        def points(scores: tuple[SizeScores, ...]) -> Iterator[Point]:
            estimates = [size_estimate(row, masks) for row in with_difference(scores)]
            return self._points(scores[0].size, estimates)

        curve = yield from score_masks(models, batches, self.cache, joint, points)
        for record in self._conclusions(self._totals(curve), curve):
            yield Step(record)

    def _totals(self, curve: ScoredSizes) -> list[Estimate]:
        """What the schedule's sizes are scored for, by each model, and the difference; none where
        they are scored for themselves."""
        masks = self.spec.masks
        rows = [list(row) for row in zip(*map(with_difference, curve), strict=True)]
        match masks:
            case AllSizes():
                return [cumulative_estimate(row, masks) for row in rows]
            case FixedSize():
                return [size_estimate(row[0], masks).scaled(self.first.dim) for row in rows]
            case _:
                return []

    def _score_to_target(self, generator: torch.Generator, target: float) -> Work[None]:
        """The sizes are strata, and their sum is what is reported."""
        spec, dim = self.spec, self.first.dim
        sizes = spec.masks.mask_sizes(dim)
        width = dim if isinstance(spec.masks, FixedSize) else 1
        widths = torch.full((len(sizes),), width, dtype=torch.float64)
        row = len(self.models) if spec.target == "difference" else 0
        sample = yield from sample_to_target(
            self._draw(sizes, generator),
            widths,
            target,
            spec.max_masks,
            pilot_masks(len(sizes)),
            self._smoothed,
            row,
        )
        for size, estimates in zip(sizes, sample.estimates(), strict=True):
            yield from map(Step, self._points(size, estimates))
        yield from map(Step, target_records(sample, row, target, 1.0, self.labels))
        yield from map(Step, self._conclusions(sample.total_estimates()))

    def _draw(self, sizes: Sequence[int], generator: torch.Generator) -> Draw:
        """What scores so many masks of each size."""
        models = list(self.models.values())

        def draw(counts: Tensor) -> Work[list[Tensor]]:
            plan = zip(sizes, counts.tolist(), strict=True)
            masks = draw_independent(plan, self.first.dim, generator, self.batch)
            curve = yield from score_masks(models, masks, self.cache)
            values = [torch.stack([row.values for row in with_difference(one)]) for one in curve]
            return list(torch.split(torch.cat(values, 1), counts.tolist(), 1))

        return draw

    def _smoothed(self, variances: Tensor) -> Tensor:
        """Sizes that are next to each other; the size D has one mask, and nothing to vary."""
        if not isinstance(self.spec.masks, AllSizes) or len(variances) == 1:
            return variances
        return torch.cat([smoothed(variances[:-1], SMOOTHED_OVER), variances[-1:]])

    def _points(self, size: int, estimates: Sequence[Estimate]) -> Iterator[Point]:
        """Of one size: by each model, and the difference."""
        for name, estimate in zip(self.models, estimates, strict=False):
            yield point("score", size, estimate, self.labels_of(name))
            if self.spec.bias:
                biased = estimate.scaled(self.first.dim)
                gap = biased.beyond(self.models[name].evidence())
                yield point("bias", size, gap, self.labels_of(name))
        for paired in estimates[len(self.models) :]:
            yield point("score_difference", size, paired, self.labels)

    def _conclusions(
        self, totals: Sequence[Estimate], curves: ScoredSizes = ()
    ) -> Iterator[Record]:
        """What is known once all masks are scored; `curves` hold their scores, size by size."""
        for i, (name, model) in enumerate(self.models.items()):
            labels = self.labels_of(name)
            yield from lml_metrics("lml", model.evidence(), labels)
            if totals:
                yield from self._total_metrics(totals[i], model, labels)
                yield from self._of_scores([scores[i] for scores in curves], model, labels)
        for paired in totals[len(self.models) :]:
            yield metric("score_difference", paired, self.labels)

    def _total_metrics(
        self, total: Estimate, model: VectorModel, labels: Labels
    ) -> Iterator[Record]:
        lml = model.evidence()
        match self.spec.masks:
            case AllSizes():
                yield metric("mpt", total, labels)
                yield metric("difference", total.beyond(lml), labels)
            case FixedSize():
                yield metric("biased_score", total, labels)
                yield metric("bias", total.beyond(lml), labels)
            case _:
                yield metric("score_sum", total, labels)

    def _of_scores(
        self, curve: Sequence[SizeScores], model: VectorModel, labels: Labels
    ) -> Iterator[Record]:
        """What takes the score of each mask."""
        if curve and curve[0].joint is not None:
            yield metric("joint_score", mask_mean(curve[0].joint, self.spec.masks), labels)
        if self.spec.convergence:
            factor = model.dim if isinstance(self.spec.masks, FixedSize) else 1
            yield from self._convergence(curve, factor, model.evidence().value, labels)

    def _convergence(
        self, curve: Sequence[SizeScores], factor: float, lml: float, labels: Labels
    ) -> Iterator[Point]:
        mean, std_err = convergence(curve, self.spec.masks)
        for i, value in enumerate(mean.tolist()):
            error = std_err[i].item() * factor if std_err is not None and i > 0 else None
            reason = None if error is not None else ONE_DRAW if i == 0 else DEPENDENT
            yield Point("convergence", i + 1, factor * value - lml, error, i + 1, labels, reason)


def _labelled(labels: Labels) -> str:
    return ", ".join(f"{name} {value}" for name, value in labels.items())
