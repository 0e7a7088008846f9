"""Scoring one seed's models with masks, and the records that tell of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from mptcore.estimation.allocation import score_to_target
from mptcore.estimation.masks import draw_masks
from mptcore.estimation.model import Evidence, MaskedModel, TractableModel
from mptcore.estimation.scores import (
    DEPENDENT,
    ONE_DRAW,
    Estimate,
    SizeScores,
    convergence,
    cumulative_estimate,
    mask_mean,
    score_masks,
    size_estimate,
)
from mptcore.protocol.records import Labels, Log, Metric, Point, Record
from mptcore.runtime.session import Tape
from mptcore.specs import AllSizes, FixedSize
from mptcore.specs.families.linear_gaussian.experiment import Scoring

BATCH_BYTES = 4 * 2**20
"""Memory for the masks that are scored together: about what a processor's caches hold."""

Work = Iterator[tuple[int, Record | None]]
"""Records, each with the number of masks scored so far."""


@dataclass(frozen=True)
class Evaluation:
    """The models that are scored on the same masks: the model, and the baseline if there is one."""

    spec: Scoring
    models: Mapping[str, MaskedModel]
    labels: Labels
    tape: Tape
    memory_bytes: int | None = None

    @property
    def first(self) -> MaskedModel:
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

    def records(self, generator: torch.Generator) -> Work:
        """Scores, and what follows from them; masks are drawn from the generator."""
        curves: list[tuple[SizeScores, ...]] = []
        if self.spec.target_std_err is None:
            scored = self._score_all(generator, curves)
        else:
            scored = self._score_to_target(generator, self.spec.target_std_err, curves)
        done = 0
        for done, record in scored:
            yield done, record
        for record in self._conclusions(curves):
            yield done, record

    def _score_all(self, generator: torch.Generator, curves: list[tuple[SizeScores, ...]]) -> Work:
        masks = self.spec.masks
        batches = draw_masks(masks, self.first.dim, generator, self.batch)
        done = 0
        tractable = all(isinstance(model, TractableModel) for model in self.models.values())
        joint = isinstance(masks, FixedSize) and tractable
        for scores in score_masks(list(self.models.values()), batches, self.tape, joint):
            if isinstance(scores, int):
                done += scores
                yield done, None
                continue
            curves.append(scores)
            for record in self._points(scores):
                yield done, record

    def _score_to_target(
        self, generator: torch.Generator, target: float, curves: list[tuple[SizeScores, ...]]
    ) -> Work:
        models, masks, most = list(self.models.values()), self.spec.masks, self.spec.max_masks
        sizes = masks.mask_sizes(self.first.dim)
        state = None
        done = 0
        for found in score_to_target(models, sizes, target, most, generator, self.batch, self.tape):
            if isinstance(found, int):
                done += found
                yield done, None
            else:
                state = found
        assert state is not None
        curves.extend(state.curves)
        for scores in curves:
            for record in self._points(scores):
                yield state.masks_scored, record
        yield most, Metric("masks", state.masks_scored, 0.0, self.labels)
        if not state.reached(target):
            detail = f"{state.std_err:.3g} after {state.masks_scored} masks: raise max_masks"
            yield most, Log("warning", f"target_std_err {target} was not reached: {detail}")

    def _points(self, scores: tuple[SizeScores, ...]) -> Iterator[Point]:
        masks, size = self.spec.masks, scores[0].size
        for name, own in zip(self.models, scores, strict=True):
            estimate = size_estimate(own, masks)
            yield point("score", size, estimate, self.labels_of(name))
            if self.spec.bias:
                bias = estimate.scaled(self.first.dim)
                gap = bias.beyond(self.models[name].evidence())
                yield point("bias", size, gap, self.labels_of(name))
        for other in scores[1:]:
            paired = size_estimate(scores[0] - other, masks)
            yield point("score_difference", size, paired, self.labels)

    def _conclusions(self, curves: Sequence[tuple[SizeScores, ...]]) -> Iterator[Record]:
        """What is known once all masks are scored."""
        for i, (name, model) in enumerate(self.models.items()):
            curve = [scores[i] for scores in curves]
            yield from self._conclude(curve, model, self.labels_of(name))
        if len(self.models) > 1 and isinstance(self.spec.masks, AllSizes):
            paired = [scores[0] - scores[1] for scores in curves]
            total = cumulative_estimate(paired, self.spec.masks)
            yield metric("score_difference", total, self.labels)

    def _conclude(
        self, curve: Sequence[SizeScores], model: MaskedModel, labels: Labels
    ) -> Iterator[Record]:
        lml = model.evidence()
        masks = self.spec.masks
        yield from lml_metrics("lml", lml, labels)
        if not curve:
            return
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


def lml_metrics(name: str, evidence: Evidence, labels: Labels) -> Iterator[Metric]:
    """A log marginal likelihood, and how good it is. What is not final has another name."""
    if evidence.not_final is None:
        yield Metric(name, evidence.value, evidence.std_err, labels)
    else:
        yield Metric(name, None, None, labels, evidence.not_final)
        yield Metric(f"{name}_not_final", evidence.value, evidence.std_err, labels)
    for what, value in evidence.metrics.items():
        yield Metric(f"{name}_{what}", value, 0.0, labels)


def point(series: str, x: float, estimate: Estimate, labels: Labels) -> Point:
    reason = ONE_DRAW if estimate.std_err is None else None
    return Point(series, x, estimate.mean, estimate.std_err, estimate.n, labels, reason)


def metric(name: str, estimate: Estimate, labels: Labels) -> Metric:
    reason = ONE_DRAW if estimate.std_err is None else None
    return Metric(name, estimate.mean, estimate.std_err, labels, reason)
