"""Score the models of one seed with masks, and yield the records."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mptcore.estimation.allocation import (
    sample_to_target,
    target_records,
)
from mptcore.estimation.estimate import (
    CONSTANT,
    MIN_KURTOSIS,
    ONE_DRAW,
    Estimate,
    final_metric,
    lml_metrics,
    over_observations,
    point,
)
from mptcore.estimation.masks import draw_masks
from mptcore.estimation.model import Model
from mptcore.estimation.quality import Grade, doubtful_reason, shift_reason
from mptcore.estimation.rounds import Rounds
from mptcore.estimation.scores import (
    ScoredSizes,
    SizeScores,
    by_model,
    convergence,
    cumulative_estimate,
    score_masks,
    size_estimates,
    size_kurtosis,
    with_difference,
)
from mptcore.protocol.records import Labels, Log, Metric, Point, Record
from mptcore.runtime.state import Records, RunState
from mptcore.specs import AllSizes, FixedSize, Masks
from mptcore.specs.evaluate import MaskEvaluation, pilot_masks
from mptcore.specs.masks import masks_of_size

BATCH_BYTES = 4 * 2**20
"""Memory budget of a batch of masks, about the size of a CPU's caches."""
OF_A_SET = (
    "lml", "mpt", "difference", "biased_score", "bias", "joint_score", "score_sum",
    "score_difference",
)  # fmt: skip
"""Names of the metrics to which others add a word, such as mpt_not_final."""
DEPENDENT = "masks of one permutation depend on each other"


@dataclass(frozen=True)
class Graded:
    """An estimate with the grade of the sampled scores behind it, and the reason not to quote it,
    if there is one."""

    estimate: Estimate
    grade: Grade | None
    reason: str | None


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
    def first(self) -> Model:
        return next(iter(self.models.values()))

    @property
    def batch(self) -> int:
        """Number of masks scored together: as many as suit each model."""
        models = self.models.values()
        if self.memory_bytes is not None:
            return max(1, self.memory_bytes // max(model.bytes_per_mask for model in models))
        return min(max(one.efficient_batch, BATCH_BYTES // one.bytes_per_mask) for one in models)

    def labels_of(self, model: str) -> Labels:
        """Return the label `model` if there are several models."""
        return self.labels if len(self.models) == 1 else {**self.labels, "model": model}

    def records(self, generator: torch.Generator) -> Records[None]:
        """Score masks drawn from the generator, and yield the scores and the metrics derived from
        them."""
        for name, model in self.models.items():
            if model.note is not None:
                yield Log("info", f"{labelled(self.labels_of(name))}: {model.note}")
        if self.spec.target_std_err is None:
            yield from self._score_all(generator)
        else:
            yield from self._score_to_target(generator, self.spec.target_std_err)

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

    def _score_all(self, generator: torch.Generator) -> Records[None]:
        masks, models = self.spec.masks, list(self.models.values())
        batches = draw_masks(masks, self.first.dim, generator, self.batch)
        tractable = all(model.is_tractable for model in models)
        joint = isinstance(masks, FixedSize) and tractable

        def points(scores: tuple[SizeScores, ...]) -> Iterator[Point]:
            rows = [self._of_sizes(i, row) for i, row in enumerate(with_difference(scores))]
            of_sizes = zip(scores[0].sizes, *rows, strict=True)
            return itertools.chain.from_iterable(self._points(size, own) for size, *own in of_sizes)

        curve = yield from score_masks(models, batches, self.state, joint, points)
        yield from self._conclusions(self._totals(curve), curve)

    def _of_sizes(self, row: int, scores: SizeScores) -> list[Graded]:
        """Return the estimate of each size."""
        grades = Grade.of_each(scores) or itertools.repeat(None)
        of_each = zip(scores.sizes, self._estimates(scores), grades, strict=False)
        return [self._graded(row, one, [size], grade) for size, one, grade in of_each]

    def _of_sum(
        self, row: int, curve: Sequence[SizeScores], estimate: Estimate, factor: float = 1
    ) -> Graded:
        """Grade an estimate computed as `factor` times the scores of a curve."""
        sizes = [size for scores in curve for size in scores.sizes]
        return self._graded(row, estimate, sizes, Grade.of(curve, factor), factor)

    def _estimates(self, scores: SizeScores) -> list[Estimate]:
        return size_estimates(scores, self.spec.masks, self._kurtoses(scores))

    def _kurtoses(self, scores: SizeScores) -> list[float]:
        """Return the kurtosis that the scores of each size may have. There is only one mask of all
        dimensions, so its score varies only if it is sampled."""
        dim = self.first.dim
        is_constant = scores.grades is None
        return [
            CONSTANT if size == dim and is_constant else size_kurtosis(size, dim)
            for size in scores.sizes
        ]

    def _totals(self, curve: ScoredSizes) -> list[Graded]:
        """Return the sum that the schedule estimates for each model and for the difference; an
        empty list if the schedule has no sum."""
        masks, dim = self.spec.masks, self.first.dim
        rows = list(enumerate(zip(*map(with_difference, curve), strict=True)))
        match masks:
            case AllSizes():
                return [self._of_sum(i, row, cumulative_estimate(row, masks)) for i, row in rows]
            case FixedSize():
                sums = ((i, row, self._estimates(row[0])[0].scaled(dim)) for i, row in rows)
                return [self._of_sum(i, row, total, dim) for i, row, total in sums]
            case _:
                return []

    def _score_to_target(self, generator: torch.Generator, target: float) -> Records[None]:
        """Score masks until the sum has the target standard error. Each size is a stratum."""
        spec, dim = self.spec, self.first.dim
        sizes = spec.masks.mask_sizes(dim)
        width = dim if isinstance(spec.masks, FixedSize) else 1
        widths = torch.full((len(sizes),), width, dtype=torch.float64)
        row = len(self.models) if spec.target == "difference" else 0
        pilot = pilot_masks(len(sizes), spec.max_masks)
        available = self._available(sizes)
        uses_singles = self._uses_singles(available, pilot)
        models = list(self.models.values())
        rounds = Rounds(models, sizes, generator, self.batch, self.state, uses_singles)
        sample = yield from sample_to_target(
            rounds.draw,
            self.state.plan(spec.max_masks),
            widths,
            target,
            pilot,
            row,
            available,
            more_in_pilot=dim if uses_singles else 0,
        )
        curve = _with_grades(sizes, torch.cat(rounds.values, 2), sample.strata)
        for k, (size, estimates) in enumerate(zip(sizes, sample.estimates(), strict=True)):
            rows = [
                self._graded(i, one, [size], Grade.of([scores[i] for scores in curve[k : k + 1]]))
                for i, one in enumerate(estimates)
            ]
            yield from self._points(size, rows)
        totals = [
            self._graded(i, one, sizes, Grade.of([scores[i] for scores in curve], width), width)
            for i, one in enumerate(sample.total_estimates())
        ]
        estimate = totals[row].estimate
        yield from target_records(estimate, sample.masks, target, self.labels)
        yield from self._conclusions(totals)

    def _uses_singles(self, available: Tensor, pilot: int) -> bool:
        """Return whether masks of single dimensions are scored too, given the number of masks that
        exist of each size: if they cost no more than the pilot, leave the masks that each size
        needs, and if not all sizes are enumerated."""
        dim, strata = self.first.dim, len(available)
        fits = dim <= strata * pilot and dim + strata * (pilot + 2) <= self.spec.max_masks
        return fits and bool((available > pilot + 2).any())

    def _available(self, sizes: Sequence[int]) -> Tensor:
        """Return the number of masks that exist of each size; infinity if there are more than may
        be scored. Sampled scores vary between evaluations, so their sizes are never enumerated."""
        most, sampled = (
            self.spec.max_masks,
            any(model.is_sampled for model in self.models.values()),
        )
        found = (masks_of_size(self.first.dim, size, most) for size in sizes)
        return torch.tensor(
            [math.inf if sampled or total > most else total for total in found],
            dtype=torch.float64,
        )

    def _graded(
        self,
        row: int,
        estimate: Estimate,
        sizes: Sequence[int],
        grade: Grade | None,
        factor: float = 1,
    ) -> Graded:
        """Return an estimate computed as `factor` times the scores of some sizes with its grade and
        the reason not to quote it, for a model or, in the row after the models, for the
        difference."""
        models = list(self.models.values())
        own = models[row : row + 1] or models
        if grade is not None:
            estimate = estimate.widened(grade.doubt)
        reason = _reason(own, estimate, grade)
        if reason is None:
            reason = _quadrature_reason(own, estimate, sizes, factor)
        return Graded(estimate, grade, reason)

    def _points(self, size: int, rows: Sequence[Graded]) -> Iterator[Point]:
        """Yield the points of one size, for each model and the difference."""
        for (name, model), own in zip(self.models.items(), rows, strict=False):
            labels = self.labels_of(name)
            yield point("score", size, own.estimate, labels, own.reason)
            if self.spec.bias:
                lml = model.evidence()
                gap = own.estimate.scaled(model.dim).beyond(lml)
                yield point("bias", size, gap, labels, own.reason or lml.not_final_reason)
        for paired in rows[len(self.models) :]:
            yield point("score_difference", size, paired.estimate, self.labels, paired.reason)

    def _conclusions(self, totals: Sequence[Graded], curves: ScoredSizes = ()) -> Iterator[Record]:
        """Yield the records that need all scores. `curves` hold the scores, size by size."""
        for i, (name, model) in enumerate(self.models.items()):
            labels = self.labels_of(name)
            yield from lml_metrics("lml", model.evidence(), labels)
            if totals:
                yield from self._total_metrics(totals[i], model, labels)
                curve = [scores[i] for scores in curves]
                yield from self._of_scores(curve, model, labels, totals[i].reason)
        for paired in totals[len(self.models) :]:
            reason = paired.reason
            yield from final_metric("score_difference", paired.estimate, self.labels, reason)

    def _total_metrics(self, total: Graded, model: Model, labels: Labels) -> Iterator[Record]:
        lml = model.evidence()
        score, gap = _names(self.spec.masks)
        yield from final_metric(score, total.estimate, labels, total.reason)
        if total.grade is not None:
            yield Metric(f"{score}_bias_estimate", total.grade.bias, 0.0, labels)
            yield Metric(f"{score}_doubtful", total.grade.share, 0.0, labels)
        if gap is not None:
            reason = total.reason or lml.not_final_reason
            yield from final_metric(gap, total.estimate.beyond(lml), labels, reason)

    def _of_scores(
        self,
        curve: Sequence[SizeScores],
        model: Model,
        labels: Labels,
        not_final_reason: str | None,
    ) -> Iterator[Record]:
        """Yield the records that need the score of each mask."""
        if curve and curve[0].joint is not None:
            (joint,) = self._estimates(SizeScores(curve[0].sizes, curve[0].joint))
            yield from final_metric("joint_score", joint, labels, not_final_reason)
        if self.spec.convergence:
            factor = model.dim if isinstance(self.spec.masks, FixedSize) else 1
            lml = model.evidence()
            reason = not_final_reason or lml.not_final_reason
            yield from self._convergence(curve, factor, lml.value, labels, reason)

    def _convergence(
        self,
        curve: Sequence[SizeScores],
        factor: float,
        lml: float,
        labels: Labels,
        not_final_reason: str | None,
    ) -> Iterator[Point]:
        alone = isinstance(self.spec.masks, FixedSize)
        kurtosis = self._kurtoses(curve[0])[0] if alone else MIN_KURTOSIS
        for p, estimate in enumerate(convergence(curve, self.spec.masks, kurtosis), 1):
            scaled = estimate.scaled(factor)
            gap = replace(scaled, mean=scaled.mean - lml)
            missing = ONE_DRAW if p == 1 else DEPENDENT
            yield point("convergence", p, gap, labels, not_final_reason, missing)


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


def _reason(models: Sequence[Model], estimate: Estimate, grade: Grade | None) -> str | None:
    """Return why an estimate by these models should not be quoted."""
    for model in models:
        if model.is_sampled:
            if model.not_final_reason is not None:
                return model.not_final_reason
            if grade is not None:
                return doubtful_reason(grade.bias, estimate.std_err, grade.share, model.advice)
    return None


def _quadrature_reason(
    models: Sequence[Model], estimate: Estimate, sizes: Sequence[int], factor: float
) -> str | None:
    """Return why an estimate that is `factor` times the scores of these sizes should not be quoted,
    for models that integrate by quadrature. For all sizes together the estimate equals the LML by
    the same quadrature, Eq. (5), so the check of the LML decides."""
    for model in models:
        if not model.is_tractable:
            continue
        if len(sizes) == model.dim:
            reason = model.evidence().not_final_reason
        else:
            shift = factor * math.fsum(model.grid_shift(size) for size in sizes)
            share = factor * len(sizes) / model.dim
            reason = shift_reason(shift, share, estimate.known_std_err)
        if reason is not None:
            return reason
    return None


def _with_grades(
    sizes: Sequence[int], values: Tensor, strata: Tensor
) -> list[tuple[SizeScores, ...]]:
    """Return the scores (models, R, masks) and the difference, size by size. An empty list if they
    have no grades: the sample has their estimates."""
    if values.shape[1] == 1:
        return []
    of_sizes = (values[:, :, None, strata == i] for i in range(len(sizes)))
    return [
        with_difference(by_model([size], own)) for size, own in zip(sizes, of_sizes, strict=True)
    ]
