"""Scoring one seed's models with masks, and the records that tell of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from mptcore.estimation.allocation import StratifiedSample, sample_to_target
from mptcore.estimation.estimate import ONE_DRAW, lml_metrics, metric, point
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
)
from mptcore.protocol.records import Labels, Log, Metric, Point, Record
from mptcore.runtime.session import ScoreCache, Step, Work
from mptcore.specs import AllSizes, FixedSize
from mptcore.specs.evaluate import PILOT, MaskEvaluation

BATCH_BYTES = 4 * 2**20
"""Memory for the masks that are scored together: about what a processor's caches hold."""
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
            curve = yield from self._score_all(generator)
        else:
            curve = yield from self._score_to_target(generator, self.spec.target_std_err)
        for record in self._conclusions(curve):
            yield Step(record)

    def _score_all(self, generator: torch.Generator) -> Work[ScoredSizes]:
        masks, models = self.spec.masks, list(self.models.values())
        batches = draw_masks(masks, self.first.dim, generator, self.batch)
        tractable = all(isinstance(model, TractableModel) for model in models)
        joint = isinstance(masks, FixedSize) and tractable
        return (yield from score_masks(models, batches, self.cache, joint, self._points))

    def _score_to_target(self, generator: torch.Generator, target: float) -> Work[ScoredSizes]:
        models, dim, most = list(self.models.values()), self.first.dim, self.spec.max_masks
        sizes = self.spec.masks.mask_sizes(dim)

        def draw(counts: torch.Tensor) -> Work[list[torch.Tensor]]:
            plan = zip(sizes, counts.tolist(), strict=True)
            masks = draw_independent(plan, dim, generator, self.batch)
            curve = yield from score_masks(models, masks, self.cache)
            return [torch.stack([one.values for one in scores]) for scores in curve]

        widths = torch.ones(len(sizes), dtype=torch.float64)
        sample = yield from sample_to_target(draw, widths, target, most, PILOT)
        curve = [
            tuple(SizeScores(size, of_model) for of_model in values)
            for size, values in zip(sizes, sample.values, strict=True)
        ]
        for scores in curve:
            for record in self._points(scores):
                yield Step(record)
        # Masks that were not needed count as scored: the run is as far as it can be.
        yield Step(Metric("masks", sample.masks, 0.0, self.labels), most - sample.masks)
        if log := _unreached(sample, target):
            yield Step(log)
        return curve

    def _points(self, scores: tuple[SizeScores, ...]) -> Iterator[Point]:
        masks, size = self.spec.masks, scores[0].size
        for name, of_model in zip(self.models, scores, strict=True):
            estimate = size_estimate(of_model, masks)
            yield point("score", size, estimate, self.labels_of(name))
            if self.spec.bias:
                biased = estimate.scaled(self.first.dim)
                gap = biased.beyond(self.models[name].evidence())
                yield point("bias", size, gap, self.labels_of(name))
        for other in scores[1:]:
            paired = size_estimate(scores[0] - other, masks)
            yield point("score_difference", size, paired, self.labels)

    def _conclusions(self, curves: ScoredSizes) -> Iterator[Record]:
        """What is known once all masks are scored."""
        for i, (name, model) in enumerate(self.models.items()):
            curve = [scores[i] for scores in curves]
            yield from self._conclude(curve, model, self.labels_of(name))
        if len(self.models) > 1 and isinstance(self.spec.masks, AllSizes):
            paired = [scores[0] - scores[1] for scores in curves]
            total = cumulative_estimate(paired, self.spec.masks)
            yield metric("score_difference", total, self.labels)

    def _conclude(
        self, curve: Sequence[SizeScores], model: VectorModel, labels: Labels
    ) -> Iterator[Record]:
        lml = model.evidence()
        masks = self.spec.masks
        yield from lml_metrics("lml", lml, labels)
        match masks:
            case AllSizes():
                factor = 1
                total = cumulative_estimate(curve, masks)
                yield metric("mpt", total, labels)
                yield metric("difference", total.beyond(lml), labels)
            case FixedSize():
                factor = model.dim
                total = size_estimate(curve[0], masks).scaled(factor)
                yield metric("biased_score", total, labels)
                yield metric("bias", total.beyond(lml), labels)
                if curve[0].joint is not None:
                    yield metric("joint_score", mask_mean(curve[0].joint, masks), labels)
            case _:
                return
        if self.spec.convergence:
            yield from self._convergence(curve, factor, lml.value, labels)

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


def _unreached(sample: StratifiedSample, target: float) -> Log | None:
    std_err = sample.total_std_errs[0].item()
    if std_err <= target:
        return None
    detail = f"{std_err:.3g} after {sample.masks} masks: raise max_masks"
    return Log("warning", f"target_std_err {target} was not reached: {detail}")
