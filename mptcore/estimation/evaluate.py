"""Score the models of one seed with masks, and yield the records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mptcore.estimation.allocation import target_records
from mptcore.estimation.estimate import (
    CONSTANT,
    MIN_KURTOSIS,
    ONE_DRAW,
    Estimate,
    final_metric,
    lml_metrics,
    over_observations,
    point,
    total_of,
)
from mptcore.estimation.masks import draw_masks
from mptcore.estimation.model import Model
from mptcore.estimation.not_final import judged
from mptcore.estimation.scores import (
    SizeScores,
    convergence,
    cumulative_estimate,
    score_sizes,
    size_estimates,
    size_kurtosis,
    with_difference,
    with_doubt_of,
)
from mptcore.estimation.target import TargetSampler
from mptcore.protocol.records import Labels, Log, Metric, Point, Record
from mptcore.runtime.state import Records, RunState
from mptcore.specs import AllSizes, FixedSize, Masks
from mptcore.specs.evaluate import MaskEvaluation

BATCH_BYTES = 4 * 2**20
"""Memory budget of a batch of masks, about the size of a CPU's caches."""
OF_A_SET = (
    "lml", "mpt", "difference", "biased_score", "bias", "joint_score", "score_sum",
    "score_difference",
)  # fmt: skip
"""Names of the metrics to which others add a word, such as mpt_not_final."""
DEPENDENT = "masks of one permutation depend on each other"


@dataclass(frozen=True)
class Evaluation:
    """The models that are scored with the same masks: the model and, if there is one, the
    baseline."""

    spec: MaskEvaluation
    models: Mapping[str, Model]
    labels: Labels
    state: RunState
    memory_bytes: int | None = None
    """Memory budget for the masks that are scored together. None means the size of a CPU's caches.
    """

    @property
    def dim(self) -> int:
        return next(iter(self.models.values())).dim

    @property
    def batch(self) -> int:
        """Number of masks scored together: as many as suit each model."""
        models = self.models.values()
        if self.memory_bytes is not None:
            return max(1, self.memory_bytes // max(model.bytes_per_mask for model in models))
        return min(
            max(model.efficient_batch, BATCH_BYTES // model.bytes_per_mask) for model in models
        )

    def labels_of(self, model: str) -> Labels:
        """Return the label `model` if there are several models."""
        return self.labels if len(self.models) == 1 else {**self.labels, "model": model}

    def records(self, generator: torch.Generator) -> Records[None]:
        """Score masks drawn from the generator. Yields the points of each size as soon as all its
        masks are scored, None after each batch, and at the end the metrics."""
        for name, model in self.models.items():
            if model.note is not None:
                yield Log("info", f"{labelled(self.labels_of(name))}: {model.note}")
        if self.spec.target_std_err is not None:
            yield from self._score_to_target(generator, self.spec.target_std_err)
            return
        models, masks, curve = list(self.models.values()), self.spec.masks, []
        batches = draw_masks(masks, self.dim, generator, self.batch)
        joint = isinstance(masks, FixedSize) and all(model.is_tractable for model in models)
        for scores in score_sizes(models, batches, self.state, joint):
            if scores is None:
                yield None
                continue
            curve.append(scores)
            kurtoses = self._kurtoses(scores)
            rows = (size_estimates(values, masks, kurtoses) for values in scores.values)
            for size, *estimates in zip(scores.sizes, *rows, strict=True):
                yield from self._points(size, estimates)
        yield from self._conclusions(self._totals(curve), curve)

    def heldout_records(
        self, generator: torch.Generator, log_probs: Mapping[str, Tensor] | None = None
    ) -> Records[None]:
        """Score masks on models of held-out observations, and yield only the metrics, under their
        own names. Without a sum of scores, the LML is the only one. `log_probs` has log p(x) of
        each observation (N,) by model, if it is known; the error over observations follows from
        it."""
        records = self.records(generator) if self.spec.has_sum else self._conclusions([])
        for record in records:
            if isinstance(record, Metric):
                yield replace(record, name=_heldout(record.name))
            else:
                yield None
        for name, values in (log_probs or {}).items():
            reason = self.models[name].evidence().not_final_reason
            yield from over_observations(values, self.labels_of(name), reason)

    def _kurtoses(self, scores: SizeScores) -> list[float]:
        """Return the kurtosis that the scores of each size may have. There is only one mask of all
        dimensions, so its score varies only if it is sampled."""
        dim = self.dim
        return [
            CONSTANT if size == dim and not scores.are_sampled else size_kurtosis(size, dim)
            for size in scores.sizes
        ]

    def _totals(self, curve: Sequence[SizeScores]) -> list[Estimate]:
        """Return the sum that the schedule estimates for each model and for the difference; an
        empty list if the schedule has no sum."""
        masks = self.spec.masks
        rows = list(zip(*(scores.values for scores in curve), strict=True))
        match masks:
            case AllSizes():
                sizes = [size for scores in curve for size in scores.sizes]
                totals = [cumulative_estimate(row, masks) for row in rows]
                return [self._judged(i, total, sizes) for i, total in enumerate(totals)]
            case FixedSize():
                (scores,) = curve
                kurtoses, dim = self._kurtoses(scores), self.dim
                totals = [size_estimates(row, masks, kurtoses)[0].scaled(dim) for (row,) in rows]
                return [self._judged(i, e, scores.sizes, dim) for i, e in enumerate(totals)]
            case _:
                return []

    def _judged(
        self, row: int, estimate: Estimate, sizes: Sequence[int], factor: float = 1
    ) -> Estimate:
        """Judge an estimate that is `factor` times the scores of some sizes, for a model or, in the
        row after the models, for the difference."""
        models = list(self.models.values())
        return judged(estimate, models[row : row + 1] or models, sizes, factor)

    def _score_to_target(self, generator: torch.Generator, target: float) -> Records[None]:
        """Score masks until the sum has the target standard error."""
        models = list(self.models.values())
        sampler = TargetSampler(models, self.spec, generator, self.batch, self.state)
        sample = yield from sampler.sample(target)
        sizes, width = sampler.sizes, sampler.width
        values = with_difference(torch.cat(sampler.scores, 2))  # (models + difference, R, masks)
        curve = sample.estimates()
        if any(model.is_sampled for model in models):
            for stratum, estimates in enumerate(curve):
                chosen = values[:, :, sample.strata == stratum]
                curve[stratum] = [*map(with_doubt_of, estimates, chosen)]
        for size, estimates in zip(sizes, curve, strict=True):
            yield from self._points(size, estimates)
        sums = zip(sample.total_estimates(), zip(*curve, strict=True), strict=True)
        totals = [
            self._judged(i, total.with_doubts_of(total_of(row).scaled(width)), sizes, width)
            for i, (total, row) in enumerate(sums)
        ]
        yield from target_records(totals[sampler.row], sample.masks, target, self.labels)
        yield from self._conclusions(totals)

    def _points(self, size: int, estimates: Sequence[Estimate]) -> Iterator[Point]:
        """Yield the points of one size, for each model and the difference."""
        estimates = [self._judged(row, estimate, [size]) for row, estimate in enumerate(estimates)]
        for (name, model), estimate in zip(self.models.items(), estimates, strict=False):
            labels = self.labels_of(name)
            yield point("score", size, estimate, labels)
            if self.spec.bias:
                gap = estimate.scaled(model.dim).beyond(model.evidence())
                yield point("bias", size, gap, labels)
        for difference in estimates[len(self.models) :]:
            yield point("score_difference", size, difference, self.labels)

    def _conclusions(
        self, totals: Sequence[Estimate], curve: Sequence[SizeScores] = ()
    ) -> Iterator[Record]:
        """Yield the records that need all scores."""
        for i, (name, model) in enumerate(self.models.items()):
            labels = self.labels_of(name)
            yield from lml_metrics("lml", model.evidence(), labels)
            if totals:
                yield from self._total_metrics(totals[i], model, labels)
                if curve:
                    reason = totals[i].not_final_reason
                    yield from self._mask_records(curve, i, model, labels, reason)
        for difference in totals[len(self.models) :]:
            yield from final_metric("score_difference", difference, self.labels)

    def _total_metrics(self, total: Estimate, model: Model, labels: Labels) -> Iterator[Record]:
        score, gap = _names(self.spec.masks)
        yield from final_metric(score, total, labels)
        if any(model.is_sampled for model in self.models.values()):
            yield Metric(f"{score}_bias_estimate", total.bias, 0.0, labels)
            yield Metric(f"{score}_doubtful", total.doubtful, 0.0, labels)
        if gap is not None:
            yield from final_metric(gap, total.beyond(model.evidence()), labels)

    def _mask_records(
        self,
        curve: Sequence[SizeScores],
        row: int,
        model: Model,
        labels: Labels,
        not_final_reason: str | None,
    ) -> Iterator[Record]:
        """Yield the records that need the score of each mask."""
        scores = curve[0].values[row]
        if len(scores) == 2:
            (joint,) = size_estimates(scores[1:], self.spec.masks, self._kurtoses(curve[0]))
            yield from final_metric(
                "joint_score", replace(joint, not_final_reason=not_final_reason), labels
            )
        if self.spec.convergence:
            yield from self._convergence(curve, row, model, labels, not_final_reason)

    def _convergence(
        self,
        curve: Sequence[SizeScores],
        row: int,
        model: Model,
        labels: Labels,
        reason: str | None,
    ) -> Iterator[Point]:
        """Yield the difference from the LML after the first p masks of each size. `reason` says why
        the sum is not final."""
        masks, evidence = self.spec.masks, model.evidence()
        kurtosis, factor = MIN_KURTOSIS, 1
        if isinstance(masks, FixedSize):
            kurtosis, factor = self._kurtoses(curve[0])[0], model.dim
        values = torch.cat([scores.values[row, 0] for scores in curve])
        for p, estimate in enumerate(convergence(values, masks, kurtosis), 1):
            total = estimate.scaled(factor)
            gap = replace(
                total,
                mean=total.mean - evidence.value,
                not_final_reason=reason or evidence.not_final_reason,
            )
            yield point("convergence", p, gap, labels, ONE_DRAW if p == 1 else DEPENDENT)


def labelled(labels: Labels) -> str:
    """Return labels as text: `seed 3, model baseline`."""
    return ", ".join(f"{name} {value}" for name, value in labels.items())


def _names(masks: Masks) -> tuple[str, str | None]:
    """Return the metric name of the schedule's sum, and the name of its difference from the LML."""
    match masks:
        case AllSizes():
            return "mpt", "difference"
        case FixedSize():
            return "biased_score", "bias"
        case _:
            return "score_sum", None


def _heldout(name: str) -> str:
    """Return the name of a metric for held-out observations: mpt_heldout_not_final and so on."""
    base = next((one for one in OF_A_SET if name == one or name.startswith(f"{one}_")), name)
    return f"{base}_heldout{name.removeprefix(base)}"
