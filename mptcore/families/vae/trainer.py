"""Training VAEs: every start with every objective, side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mptcore.data.arrays import Dataset
from mptcore.estimation.scores import ONE_DRAW
from mptcore.families.vae.evidence import by_weights, weighed
from mptcore.families.vae.grid_vae import GridVae, mean_log_marginal
from mptcore.families.vae.sampled_vae import DeepVae
from mptcore.families.vae.variational import ROWS
from mptcore.protocol.records import Labels, Point
from mptcore.runtime.rng import stream
from mptcore.runtime.session import TrainingState
from mptcore.specs import LatentTrain
from mptcore.specs.families.vae.models import Objective
from mptcore.specs.train import Steps
from mptcore.training.step_masks import (
    ONE_STEP,
    DivergedError,
    StepMasks,
    learned_state,
    restore_learned,
)

Network = GridVae | DeepVae

ONE_BATCH = "the observations of one step"


@dataclass(frozen=True)
class Unit:
    """One start trained with one objective."""

    seed: int
    objective: Objective
    labels: Labels
    network: Network
    dataset: Dataset
    x: Tensor  # (N, D), where and as precise as the network
    heldout: Tensor | None

    @property
    def has_encoder(self) -> bool:
        return self.network.encoder is not None


class LatentTrainer:
    """Adam on all units. Losses of one unit have no gradients in another's parameters."""

    def __init__(self, spec: LatentTrain, units: Sequence[Unit], seeds: Sequence[int]):
        self.spec, self.units, self.seeds = spec, units, seeds
        self.learned = [p for unit in units for p in unit.network.parameters()]
        self.adam = torch.optim.Adam(self.learned, lr=spec.learning_rate, fused=True)
        self.masks = StepMasks(spec, self.dim, seeds)
        self.noise = [stream(unit.seed, f"{unit.objective} draws") for unit in units]
        self.order = stream(seeds[0], "batches")
        self.epoch = 0

    @property
    def dim(self) -> int:
        return self.units[0].x.shape[1]

    @property
    def course(self) -> Steps:
        return self.spec

    @property
    def observations(self) -> int:
        return len(self.units[0].x)

    @property
    def masks_per_step(self) -> int:
        """Over all units."""
        return len(self.units) * self.spec.masks_per_step(self.dim)

    def step(self) -> list[Point]:
        """One epoch: its records, where it is recorded, and its steps. The last is not trained."""
        last = self.epoch == self.spec.epochs
        recorded = last or self.epoch % self.spec.evaluate_every == 0
        points: list[Point] = []
        for i, rows in enumerate(self._batches()):
            masks = dict(
                zip(self.seeds, self.masks.draw(self.epoch / self.spec.epochs), strict=True)
            )
            self.adam.zero_grad(set_to_none=True)
            first = recorded and i == 0
            losses = []
            for unit, noise in zip(self.units, self.noise, strict=True):
                masked = masks[unit.seed].to(unit.x.device)
                x = unit.x[rows]
                beside = list(self._beside(unit, x, masked)) if first else []
                objective = self._descent(unit, x, masked, noise)
                losses.append(-objective)
                if first:
                    points += [*self._of_step(unit, objective), *beside]
            self._refuse_what_is_not_finite(losses, points)
            if last:
                break
            self.adam.step()
        return points

    def _batches(self) -> Iterator[Tensor | slice]:
        size = self.spec.batch_size
        if size is None:
            yield slice(None)
        else:
            order = torch.randperm(self.observations, generator=self.order)
            yield from torch.split(order, size)

    def _descent(self, unit: Unit, x: Tensor, masked: Tensor, noise: torch.Generator) -> Tensor:
        """The unit's objective, whose descent is left with its parameters as a gradient."""
        objective = self._objective(unit, x, masked, noise)
        (-objective).backward()  # type: ignore[no-untyped-call]
        if unit.objective == "mpt" and isinstance(unit.network, DeepVae):
            self._fit_encoder(unit.network, x, noise)
        return objective

    @torch.no_grad()
    def _beside(self, unit: Unit, x: Tensor, masked: Tensor) -> Iterator[Point]:
        """What is recorded beside the objective: the score of the same step, the ELBO over all
        data, and the LML. Training does not depend on it."""
        noise = stream(unit.seed, f"recorded {self.epoch}")
        if unit.objective != "mpt":
            yield self._score_point(unit, self._score(unit.network, x, masked, noise))
        if unit.has_encoder:
            parts = torch.split(unit.x, ROWS)
            first, second = (
                torch.cat([unit.network.elbo(part, noise) for part in parts]).double()
                for _ in range(2)
            )
            mean = (first + second).mean().item() / 2
            error = (first - second).norm().item() / 2 / len(first)
            yield Point("elbo", self.epoch, mean, error, 2, unit.labels)
        yield self._lml("lml", unit, unit.x)
        if unit.heldout is not None:
            yield self._lml("lml_heldout", unit, unit.heldout)

    def _objective(self, unit: Unit, x: Tensor, masked: Tensor, noise: torch.Generator) -> Tensor:
        match unit.objective:
            case "mpt":
                return self._score(unit.network, x, masked, noise)
            case "elbo":
                return unit.network.elbo(x, noise).mean()
            case "lml":
                assert isinstance(unit.network, GridVae)
                return unit.network.log_marginal(x).mean()

    def _score(self, network: Network, x: Tensor, masked: Tensor, noise: torch.Generator) -> Tensor:
        if isinstance(network, GridVae):
            return self.dim * network.score(x, masked)
        return self.dim * network.score(x, masked, noise)

    def _fit_encoder(self, network: DeepVae, x: Tensor, noise: torch.Generator) -> None:
        """The ELBO's gradient in the encoder, with the decoder as it stands."""
        decoder = list(network.decoder.parameters())
        for parameter in decoder:
            parameter.requires_grad_(False)
        (-network.elbo(x, noise).mean()).backward()  # type: ignore[no-untyped-call]
        for parameter in decoder:
            parameter.requires_grad_(True)

    def _refuse_what_is_not_finite(self, losses: list[Tensor], points: list[Point]) -> None:
        pairs = zip(self.units, torch.stack(losses).tolist(), strict=True)
        bad = [unit.seed for unit, loss in pairs if not abs(loss) < float("inf")]
        if bad:
            raise DivergedError(self.epoch, bad, points)

    def _of_step(self, unit: Unit, objective: Tensor) -> Iterator[Point]:
        """The loss, and the score where that is the objective."""
        loss = -objective.item()
        match unit.objective:
            case "mpt":
                score = self._score_point(unit, objective)
                yield replace(score, series="loss", value=loss)
                yield score
            case "elbo":
                yield Point("loss", self.epoch, loss, None, 1, unit.labels, ONE_DRAW)
            case "lml" if self.spec.batch_size is None:
                yield Point("loss", self.epoch, loss, 0.0, 0, unit.labels)
            case "lml":
                n = self.spec.batch_size
                yield Point("loss", self.epoch, loss, None, n, unit.labels, ONE_BATCH)

    def _score_point(self, unit: Unit, score: Tensor) -> Point:
        n = self.spec.masks_per_step(self.dim)
        return Point("mpt", self.epoch, score.item(), None, n, unit.labels, ONE_STEP)

    def _lml(self, name: str, unit: Unit, x: Tensor) -> Point:
        """By the model's grid, or the importance weighted bound."""
        if isinstance(unit.network, GridVae):
            return Point(name, self.epoch, mean_log_marginal(unit.network, x), 0.0, 0, unit.labels)
        samples = self.spec.lml_samples
        draws = stream(unit.seed, f"{name} {self.epoch}")
        network = unit.network
        logs = (network.log_weights(part, samples, draws) for part in network.parts(x, samples))
        found = by_weights([weighed(one) for one in logs])
        return Point(name, self.epoch, found.value, found.std_err, samples, unit.labels)

    def state(self, seq: int, done: int) -> TrainingState:
        """All that the rest of the training follows from."""
        tensors = learned_state(self.adam, self.learned) | self.masks.state()
        tensors |= {f"noise/{i}": noise.get_state() for i, noise in enumerate(self.noise)}
        tensors["order"] = self.order.get_state()
        return TrainingState(self.epoch, seq, done, tensors)

    def restore(self, state: TrainingState) -> None:
        self.epoch = state.epoch
        restore_learned(self.adam, self.learned, state.tensors)
        self.masks.restore(state.tensors)
        for i, noise in enumerate(self.noise):
            noise.set_state(state.tensors[f"noise/{i}"].cpu())
        self.order.set_state(state.tensors["order"].cpu())
