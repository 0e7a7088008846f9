"""Train VAEs: every start with every objective, side by side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.estimation.estimate import ONE_DRAW, Estimate, point
from mptcore.families.vae.vae import ROWS, Vae, ascend
from mptcore.protocol.records import Labels, Point, SeriesName
from mptcore.runtime.device import to_device
from mptcore.runtime.out_of_memory import rowwise_on_oom
from mptcore.runtime.rng import generator_for
from mptcore.specs import VaeTrain
from mptcore.specs.families.vae.models import Objective
from mptcore.training.adam import Adam
from mptcore.training.learned import Learned
from mptcore.training.loop import Schedule, Trained, diverged
from mptcore.training.step_masks import StepMasks
from mptcore.training.step_points import lml_loss, score_of_step
from mptcore.training.step_rows import StepRows

Rows = Mapping[int, Tensor | slice]
"""The observations that the starts of each seed use in a step."""


@dataclass(frozen=True)
class TrainingStart:
    """The VAE of one seed, trained with one objective, and its data."""

    seed: int
    objective: Objective
    labels: Labels
    vae: Vae
    dataset: Dataset
    x: Tensor  # (N, D), on the VAE's device, in its dtype
    heldout: Tensor | None  # (H, D)

    @property
    def held_or_seen(self) -> Tensor:
        """Held-out observations if there are any, else the training observations."""
        return self.x if self.heldout is None else self.heldout


class VaeTrainer:
    """Adam on all starts. The loss of one start has no gradient in the parameters of another."""

    def __init__(self, spec: VaeTrain, starts: Sequence[TrainingStart], seeds: Sequence[int]):
        self.spec, self.starts, self.seeds = spec, starts, seeds
        parameters = {
            f"{i}/{name}": parameter
            for i, start in enumerate(starts)
            for name, parameter in start.vae.named_parameters()
        }
        self.adam = Adam(parameters.values(), lr=spec.learning_rate, fused=True)
        self.masks = StepMasks(spec, self.dim, seeds)
        self.device = starts[0].x.device
        self.draws = [
            generator_for(start.seed, f"{start.objective} draws", self.device) for start in starts
        ]
        observations = len(starts[0].x)
        self.rows = StepRows(observations, spec.batch_size or observations, seeds)
        draws = {f"draws/{i}": generator for i, generator in enumerate(self.draws)}
        generators = {**self.masks.generators(), **draws, **self.rows.generators()}
        self.learned = Learned(parameters, self.adam, generators)
        self.epoch = 0

    @property
    def dim(self) -> int:
        return self.starts[0].x.shape[1]

    @property
    def schedule(self) -> Schedule:
        return self.spec

    def heldout_points(self) -> list[Point]:
        return []  # recorded with the other points

    def tensors(self) -> dict[str, Tensor]:
        return self.learned.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.learned.restore(tensors)

    def advance(self) -> list[Trained]:
        """Train one epoch of all starts."""
        last = self.epoch == self.spec.epochs
        recorded = last or self.epoch % self.spec.evaluate_every == 0
        points: list[Point] = []
        for i, rows in enumerate(self._batches()):
            self.adam.zero_grad(set_to_none=True)
            losses = self._step(rows, points if recorded and i == 0 else None)
            self._check_finite(losses, points)
            if last:
                break
            self.adam.step()
        masks = self.spec.masks_of_epoch(self.epoch, len(self.starts[0].x), self.dim)
        return [(points, len(self.starts) * masks)]

    def _step(self, rows: Rows, points: list[Point] | None) -> list[Tensor]:
        """Return the loss of each start, and add its gradient to its parameters. Append the points
        of the step to `points` if it is given."""
        fraction = self.epoch / self.spec.epochs
        step_masks = self.masks.draw([fraction])[:, 0]  # (S, B, D)
        masks = dict(zip(self.seeds, to_device(step_masks, self.device), strict=True))
        losses = []
        for start, generator in zip(self.starts, self.draws, strict=True):
            start_masks, x = masks[start.seed], start.x[rows[start.seed]]
            recorded = [] if points is None else list(self._recorded(start, x, start_masks))
            objective = self._objective(start, x, start_masks, generator)
            losses.append(-objective)
            if points is not None:
                points += [*self._points_of_step(start, objective), *recorded]
        return losses

    def _batches(self) -> Iterator[Rows]:
        """Yield the observations of each step. They are the same for all objectives of a seed."""
        if self.spec.batch_size is None:
            yield dict.fromkeys(self.seeds, slice(None))
            return
        for rows in self.rows.epoch():
            yield dict(zip(self.seeds, to_device(torch.stack(rows), self.device), strict=True))

    def _objective(
        self, start: TrainingStart, x: Tensor, masks: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return the objective of a start, and add the gradient of its ascent to the parameters, in
        parts if memory is short."""
        vae = start.vae
        match start.objective:
            case "mpt":
                state = generator.get_state()  # in parts, each mask has the same draws
                score = ascend(
                    lambda part: self.dim * vae.score(x, part, generator),
                    (masks,),
                    vae,
                    lambda: generator.set_state(state),
                )
                vae.fit_encoder(x, generator)
                return score
            case "elbo":
                rows = x, vae.normal(x, generator)
                return ascend(lambda *part: vae.elbo(*part).mean(), rows, vae)
            case "lml":
                return ascend(lambda part: vae.log_marginal(part).mean(), (x,), vae)
            case _:
                assert_never(start.objective)

    @torch.no_grad()
    def _recorded(self, start: TrainingStart, x: Tensor, masks: Tensor) -> Iterator[Point]:
        """Yield the points recorded in addition to the objective: the score of the same step, the
        ELBO of all data, and the LML. Training does not depend on them."""
        generator = generator_for(start.seed, f"recorded {self.epoch}", self.device)
        if start.objective != "mpt":
            score = self.dim * start.vae.score(x, masks, generator)
            yield self._score_point(start, score)
        if start.vae.encoder is not None:
            yield self._elbo_point(start, generator)
        yield self._lml_point("lml", start, start.x)
        if start.heldout is not None:
            yield self._lml_point("lml_heldout", start, start.heldout)

    def _elbo_point(self, start: TrainingStart, generator: torch.Generator) -> Point:
        """Estimate the ELBO from two draws for each observation. Their difference gives the
        error."""
        parts = torch.split(start.x, ROWS)
        vae = start.vae

        def elbos(x: Tensor) -> Tensor:
            return rowwise_on_oom(lambda *rows: (vae.elbo(*rows),), x, vae.normal(x, generator))[0]

        first, second = (torch.cat([elbos(part) for part in parts]).double() for _ in range(2))
        mean = (first + second).mean().item() / 2
        error = (first - second).norm().item() / 2 / len(first)
        return point("elbo", self.epoch, Estimate(mean, error, 2, len(first)), start.labels)

    def _lml_point(self, name: SeriesName, start: TrainingStart, x: Tensor) -> Point:
        generator = generator_for(start.seed, f"{name} {self.epoch}", self.device)
        lml = start.vae.quick_lml(x, self.spec.lml_samples, generator)
        reason, draws = lml.not_final_reason, self.spec.lml_samples if lml.std_err else 0
        error = lml.std_err if reason is None else None
        return Point(name, self.epoch, lml.value, error, draws, start.labels, reason)

    def _check_finite(self, losses: list[Tensor], points: list[Point]) -> None:
        pairs = zip(self.starts, torch.stack(losses).tolist(), strict=True)
        not_finite = [start.seed for start, loss in pairs if not abs(loss) < float("inf")]
        if not_finite:
            raise diverged(self.epoch, not_finite, points, self.starts[0].x.dtype)

    def _points_of_step(self, start: TrainingStart, objective: Tensor) -> Iterator[Point]:
        """Yield the loss, and the score if it is the objective."""
        loss = -objective.item()
        match start.objective:
            case "mpt":
                score = self._score_point(start, objective)
                yield replace(score, series="loss", value=loss)
                yield score
            case "elbo":
                yield Point("loss", self.epoch, loss, None, 1, start.labels, ONE_DRAW)
            case "lml":
                yield lml_loss(self.epoch, loss, self.spec.batch_size, start.labels)

    def _score_point(self, start: TrainingStart, score: Tensor) -> Point:
        masks = self.spec.masks_per_step(self.dim)
        return score_of_step("mpt", self.epoch, score.item(), masks, start.labels)
