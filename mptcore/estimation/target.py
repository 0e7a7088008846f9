"""Score masks of each size in rounds, until the sum over sizes has a target standard error."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mptcore.estimation.allocation import StratifiedSample, sample_to_target
from mptcore.estimation.control_variate import ControlVariate
from mptcore.estimation.masks import MaskBatch, draw_independent, enumerate_masks
from mptcore.estimation.model import Model
from mptcore.estimation.scores import score_batches
from mptcore.runtime.state import Records, RunState
from mptcore.specs import FixedSize
from mptcore.specs.evaluate import MaskEvaluation, pilot_masks
from mptcore.specs.masks import masks_of_size


@dataclass
class TargetSampler:
    """Scores masks by each model until a sum has its target error. Each size is a stratum."""

    models: Sequence[Model]
    spec: MaskEvaluation
    generator: torch.Generator
    max_batch: int
    """Maximum number of masks scored together."""
    state: RunState
    scores: list[Tensor] = field(default_factory=list)
    """Scores of each round, (models, R, masks)."""
    _control: ControlVariate | None = None
    _scored: int = 0
    """Number of masks of the rounds before."""

    @property
    def dim(self) -> int:
        return self.models[0].dim

    @property
    def sizes(self) -> Sequence[int]:
        return self.spec.masks.mask_sizes(self.dim)

    @property
    def width(self) -> int:
        """Weight of each size in the sum: a fixed size stands for all D."""
        return self.dim if isinstance(self.spec.masks, FixedSize) else 1

    @property
    def row(self) -> int:
        """Row of the sum that is to have the target error: that of the first model, or that of the
        difference, which follows the models."""
        return len(self.models) if self.spec.target == "difference" else 0

    def sample(self, target: float) -> Records[StratifiedSample]:
        """Score masks until the sum has the standard error `target`, or the masks are used up."""
        plan, available = self.state.plan(self.spec.max_masks), self._available()
        pilot = pilot_masks(len(self.sizes), self.spec.max_masks)
        if uses_control := self._can_use_control(available, pilot):
            single, _ = yield from self._score(enumerate_masks([1], self.dim, self.max_batch))
            self._control = ControlVariate(single[:, 0])
        return (
            yield from sample_to_target(
                self._draw,
                plan,
                torch.full((len(self.sizes),), self.width, dtype=torch.float64),
                target,
                pilot,
                self.row,
                available,
                more_in_pilot=self.dim if uses_control else 0,
            )
        )

    def _available(self) -> Tensor:
        """Return the number of masks that exist of each size; infinity if there are more than may
        be scored. Sampled scores vary between evaluations, so their sizes are never enumerated."""
        max_masks = self.spec.max_masks
        if any(model.is_sampled for model in self.models):
            return torch.full((len(self.sizes),), math.inf, dtype=torch.float64)
        totals = (masks_of_size(self.dim, size, max_masks) for size in self.sizes)
        numbers = [math.inf if total > max_masks else total for total in totals]
        return torch.tensor(numbers, dtype=torch.float64)

    def _can_use_control(self, available: Tensor, pilot: int) -> bool:
        """Return whether masks of single dimensions are scored for a control variate: if they cost
        no more than the pilot, leave the masks that each size needs, and if not all sizes are
        enumerated."""
        strata = len(available)
        fits = self.dim <= strata * pilot
        leaves_enough = self.dim + strata * (pilot + 2) <= self.spec.max_masks
        return fits and leaves_enough and bool((available > pilot + 2).any())

    def _draw(self, counts: Tensor, enumerated: Tensor) -> Records[Tensor]:
        """Score a round as `allocation.Draw` says. Return the scores by each model and, for two
        models, their difference, without the predicted part: (rows, masks)."""
        at_random = counts * ~enumerated
        plan = zip(self.sizes, at_random.tolist(), strict=True)
        whole_sizes = [self.sizes[i] for i in enumerated.nonzero().flatten().tolist()]
        masks = itertools.chain(
            enumerate_masks(whole_sizes, self.dim, self.max_batch),
            draw_independent(plan, self.dim, self.generator, self.max_batch),
        )
        scores, predictions = yield from self._score(masks)
        strata = [torch.repeat_interleave(part) for part in (counts - at_random, at_random)]
        order = torch.argsort(torch.cat(strata), stable=True)
        scores = scores[:, :, order]
        self.scores.append(scores)
        values = scores[:, 0]
        if self._control is not None:
            values = self._control.residuals(values, torch.cat(predictions, 1)[:, order], counts)
        return torch.cat([values, values[:1] - values[1:]])

    def _score(self, masks: Iterable[MaskBatch]) -> Records[tuple[Tensor, list[Tensor]]]:
        """Return the scores (models, R, masks), and the control variate's predictions of them
        (models, B) for each batch, once there is one."""
        scores, predictions = [], []
        batches = score_batches(self.models, masks, self.state, first=self._scored)
        for batch, of_batch in batches:
            scores.append(of_batch)
            if self._control is not None:
                predictions.append(self._control.predictions(batch.masks))
            self.state.count(len(batch))
            yield None
        joined = torch.cat(scores, 2)
        self._scored += joined.shape[2]
        return joined, predictions
