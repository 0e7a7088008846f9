"""Scoring one seed's models with masks, and the records that tell of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from mptcore.estimation.allocation import StratifiedSample, sample_to_target
from mptcore.estimation.estimate import ONE_DRAW, Estimate, final_metric, lml_metrics, metric, point
from mptcore.estimation.masks import draw_independent, draw_masks
from mptcore.estimation.model import Evidence, SampledModel, TractableModel, VectorModel
from mptcore.estimation.quality import Grade, doubtful_reason
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
            rounds.append(curve)
            return [torch.stack([one.values for one in scores]) for scores in curve]

        rounds: list[ScoredSizes] = []
        widths = torch.ones(len(sizes), dtype=torch.float64)
        sample = yield from sample_to_target(draw, widths, target, most, PILOT)
        curve = [
            tuple(
                SizeScores(size, of_model, grades=_grades([once[i][j] for once in rounds]))
                for j, of_model in enumerate(values)
            )
            for i, (size, values) in enumerate(zip(sizes, sample.values, strict=True))
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
            model, labels = self.models[name], self.labels_of(name)
            estimate = size_estimate(of_model, masks)
            reason = _reason([model], [of_model], estimate)
            yield point("score", size, estimate, labels, reason)
            if self.spec.bias:
                lml = model.evidence()
                gap = estimate.scaled(model.dim).beyond(lml)
                yield point("bias", size, gap, labels, reason or _lml_reason(model, lml))
        for other in scores[1:]:
            difference = scores[0] - other
            paired = size_estimate(difference, masks)
            reason = _reason(self.models.values(), [difference], paired)
            yield point("score_difference", size, paired, self.labels, reason)

    def _conclusions(self, curves: ScoredSizes) -> Iterator[Record]:
        """What is known once all masks are scored."""
        for i, (name, model) in enumerate(self.models.items()):
            curve = [scores[i] for scores in curves]
            yield from self._conclude(curve, model, self.labels_of(name))
        if len(self.models) > 1 and isinstance(self.spec.masks, AllSizes):
            paired = [scores[0] - scores[1] for scores in curves]
            total = cumulative_estimate(paired, self.spec.masks)
            reason = _reason(self.models.values(), paired, total)
            yield from final_metric("score_difference", total, self.labels, reason)

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
                names = "mpt", "difference"
            case FixedSize():
                factor = model.dim
                total = size_estimate(curve[0], masks).scaled(factor)
                names = "biased_score", "bias"
            case _:
                return
        reason = _reason([model], curve, total, factor)
        yield from final_metric(names[0], total, labels, reason)
        if grade := Grade.of(curve, factor):
            yield Metric(f"{names[0]}_bias_estimate", grade.bias, 0.0, labels)
            yield Metric(f"{names[0]}_doubtful", grade.share, 0.0, labels)
        reason = reason or _lml_reason(model, lml)
        yield from final_metric(names[1], total.beyond(lml), labels, reason)
        if curve[0].joint is not None:
            yield metric("joint_score", mask_mean(curve[0].joint, masks), labels)
        if self.spec.convergence:
            yield from self._convergence(curve, factor, lml.value, labels, reason)

    def _convergence(
        self,
        curve: Sequence[SizeScores],
        factor: float,
        lml: float,
        labels: Labels,
        unconverged_reason: str | None,
    ) -> Iterator[Point]:
        mean, std_err = convergence(curve, self.spec.masks)
        for i, value in enumerate(mean.tolist()):
            error = std_err[i].item() * factor if std_err is not None and i > 0 else None
            reason = None if error is not None else ONE_DRAW if i == 0 else DEPENDENT
            if unconverged_reason is not None:
                error, reason = None, unconverged_reason
            yield Point("convergence", i + 1, factor * value - lml, error, i + 1, labels, reason)


def _reason(
    models: Iterable[VectorModel], curve: Sequence[SizeScores], total: Estimate, factor: float = 1
) -> str | None:
    """Why an estimate from scores that were sampled should not be quoted: the sum of the scores of
    a curve, or of the differences of two models', times a factor."""
    for model in models:
        if isinstance(model, SampledModel):
            if model.never_final is not None:
                return model.never_final
            if grade := Grade.of(curve, factor):
                return doubtful_reason(grade.bias, total.std_err, grade.share, model.cure)
    return None


def _lml_reason(model: VectorModel, lml: Evidence) -> str | None:
    """Why a difference from the LML should not be quoted. That of a grid is exact for the grid, on
    which the scores rest too."""
    return None if isinstance(model, TractableModel) else lml.unconverged_reason


def _grades(rounds: Sequence[SizeScores]) -> torch.Tensor | None:
    """Of one model's scores of one size, by all rounds."""
    found = [scores.grades for scores in rounds if scores.grades is not None]
    return torch.cat(found, 1) if found else None


def _unreached(sample: StratifiedSample, target: float) -> Log | None:
    std_err = sample.total_std_errs[0].item()
    if std_err <= target:
        return None
    detail = f"{std_err:.3g} after {sample.masks} masks: raise max_masks"
    return Log("warning", f"target_std_err {target} was not reached: {detail}")
