"""Score the rounds of masks of a run with a target."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mptcore.estimation.masks import MaskBatch, draw_independent, enumerate_masks
from mptcore.estimation.model import Model
from mptcore.estimation.scores import score_batches
from mptcore.estimation.single_scores import SingleScores
from mptcore.runtime.state import Records, RunState


@dataclass
class Rounds:
    """Scores masks of each size by each model, round by round."""

    models: Sequence[Model]
    sizes: Sequence[int]
    generator: torch.Generator
    max_batch: int
    """Maximum number of masks scored together."""
    state: RunState
    uses_singles: bool
    """True subtracts what the scores of single dimensions predict. They are scored first."""
    values: list[Tensor] = field(default_factory=list)
    """Whole scores and grades of each round, (models, R, masks)."""
    _singles: SingleScores | None = None
    _scored: int = 0
    """Number of masks of the rounds before."""

    def draw(self, counts: Tensor, enumerated: Tensor) -> Records[Tensor]:
        """Score a round as `allocation.Draw` says. Return the scores by each model and, for two
        models, their difference, without the predicted part: (rows, masks)."""
        dim = self.models[0].dim
        if self.uses_singles and self._singles is None:
            of_one, _ = yield from self._score(enumerate_masks([1], dim, self.max_batch))
            self._singles = SingleScores(of_one[:, 0])
        at_random = counts * ~enumerated
        plan = zip(self.sizes, at_random.tolist(), strict=True)
        whole = [self.sizes[i] for i in enumerated.nonzero().flatten().tolist()]
        masks = itertools.chain(
            enumerate_masks(whole, dim, self.max_batch),
            draw_independent(plan, dim, self.generator, self.max_batch),
        )
        values, predicted = yield from self._score(masks)
        strata = [torch.repeat_interleave(part) for part in (counts - at_random, at_random)]
        order = torch.argsort(torch.cat(strata), stable=True)
        values = values[:, :, order]
        self.values.append(values)
        own = values[:, 0]
        if self._singles is not None:
            own = self._singles.residuals(own, torch.cat(predicted, 1)[:, order], counts)
        return torch.cat([own, own[:1] - own[1:]])

    def _score(self, masks: Iterable[MaskBatch]) -> Records[tuple[Tensor, list[Tensor]]]:
        """Return the scores and grades, (models, R, masks), and what single dimensions predict,
        (models, B) for each batch, once these are scored."""
        scores, predicted = [], []
        batches = score_batches(self.models, masks, self.state, first=self._scored)
        for batch, of_batch in batches:
            scores.append(of_batch)
            if self._singles is not None:
                predicted.append(self._singles.predictions(batch.masks))
            self.state.count(len(batch))
            yield None
        whole = torch.cat(scores, 2)
        self._scored += whole.shape[2]
        return whole, predicted
