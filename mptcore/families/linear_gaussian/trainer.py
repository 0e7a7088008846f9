"""Train all starts of an experiment as one batch."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.moments import (
    DenseMoment,
    FactoredMoment,
    Moment,
    compressed,
    data_factor,
    of_factor,
    second_moment,
    stacked,
)
from mptcore.families.linear_gaussian.rounding import keeps_digits
from mptcore.families.linear_gaussian.routes import solver_of_step
from mptcore.families.linear_gaussian.short_steps import ShortSteps, epochs_at_once
from mptcore.families.linear_gaussian.solver import ScoreGradient, Solver
from mptcore.protocol.records import Labels, Point, SeriesName
from mptcore.runtime.device import to_device
from mptcore.runtime.out_of_memory import split_on_oom
from mptcore.specs import FactorAnalysisModel, LinearGaussianSpec, Train
from mptcore.training.adam import Adam
from mptcore.training.learned import Learned
from mptcore.training.loop import Schedule, Trained, diverged
from mptcore.training.step_masks import StepMasks
from mptcore.training.step_points import lml_loss, score_of_step
from mptcore.training.step_rows import StepRows

SMALL = 64
"""Up to this number of dimensions a moment of any rank is factored, so that compiled loops
apply."""

NEVER = -1
ROUTE = "by residuals from"


@dataclass(frozen=True)
class _Centred:
    """Mean of the data and their moment about it, shared by all starts or stacked for each."""

    mean: Tensor  # (S or 1, D)
    moment: Moment

    def about(self, mean: Tensor) -> Moment:
        """Return the moment about another mean (S, D): C + d dᵀ, where d is the difference of the
        means."""
        if mean is self.mean:
            return self.moment
        shift = self.mean - mean
        if not mean.requires_grad and not shift.any():
            return self.moment
        match self.moment:
            case DenseMoment(matrix):
                return DenseMoment(matrix + shift[..., :, None] * shift[..., None, :])
            case FactoredMoment(factor, diagonal):
                starts = (len(shift), *factor.shape[1:])
                wider = torch.cat([factor.expand(starts), shift[..., None]], dim=-1)
                return FactoredMoment(wider, diagonal + shift.square())


class LinearGaussianTrainer:
    """Adam on the loadings W (S, D, K) of S starts and, if the spec says so, on the mean and the
    logarithm of the noise variance. The gradients of a sum over starts do not mix the starts."""

    def __init__(
        self,
        model: LinearGaussianSpec,
        spec: Train,
        seeds: Sequence[int],
        starts: Sequence[LowRankGaussian],
        datasets: Sequence[Dataset],
        device: torch.device,
    ):
        self.spec, self.seeds = spec, seeds
        self.device = device
        self.by_residuals_from = NEVER
        """First epoch at which sums of moments are not precise enough."""
        self._masks_at_once: int | None = None
        """Number of masks of a start that fitted in memory at once, if all did not fit."""
        shared = all(dataset is datasets[0] for dataset in datasets)
        self._datasets = datasets[:1] if shared else datasets
        self._x = [dataset.x.to(device) for dataset in self._datasets]
        self.loadings = self._tensor([d.loadings for d in starts], True)
        self.mean = self._tensor([d.mean for d in starts], spec.learn_mean)
        per_dimension = isinstance(model, FactorAnalysisModel)
        noise = [d.noise_variance if per_dimension else d.noise_variance[:1] for d in starts]
        self.log_noise = self._tensor([n.log() for n in noise], spec.learn_noise_precision)
        self.parameters = {
            name: parameter
            for name in ("loadings", "mean", "log_noise")
            if (parameter := getattr(self, name)).requires_grad
        }
        self.adam = Adam(self.parameters.values(), lr=spec.learning_rate, fused=True)
        self.masks = StepMasks(spec, self.dim, seeds)
        self._observations = len(datasets[0].x)
        self._labels: list[Labels] = [{"seed": seed} for seed in seeds]
        self.rows = StepRows(self._observations, spec.batch_size or self._observations, seeds)
        generators = {**self.masks.generators(), **self.rows.generators()}
        self.learned = Learned(self.parameters, self.adam, generators)
        self.epoch = 0
        self._take_data()

    def _take_data(self) -> None:
        fixed_noise = not self.spec.learn_noise_precision
        self._full = self._centred([x[None] for x in self._x], fixed_noise)
        # In few dimensions, finding the rank of a batch costs more than a low rank saves.
        low_rank = isinstance(self._full.moment, FactoredMoment)
        self._low_rank_batches = low_rank and self.dim > SMALL
        held = [d.heldout[None] for d in self._datasets if d.heldout is not None]
        self._heldout = self._centred(held, fixed_noise) if held else None
        self._at_once = self._epochs_at_once()

    def _epochs_at_once(self) -> int:
        """Return the number of epochs to train at once by compiled loops, 0 if they do not
        apply."""
        spec, moments = self.spec, [data.moment for data in (self._full, self._heldout) if data]
        factored = [moment for moment in moments if isinstance(moment, FactoredMoment)]
        applies = self._by_score and spec.batch_size is None and not spec.learn_mean
        applies &= self.device.type == "cpu" and self.by_residuals_from == NEVER
        if not applies or len(factored) < len(moments):
            return 0
        masks = spec.masks_per_step(self.dim)
        return min(epochs_at_once(self.loadings, moment, masks) for moment in factored)

    @property
    def dim(self) -> int:
        return self.loadings.shape[1]

    @property
    def _by_score(self) -> bool:
        return self.spec.objective == ("mpt",)

    @property
    def schedule(self) -> Schedule:
        return self.spec

    def densities(self) -> list[LowRankGaussian]:
        """Return the current density of each start."""
        noise = self._noises()
        parts = [part.detach().clone() for part in (self.loadings, self.mean, noise)]
        return [LowRankGaussian(*of_start) for of_start in zip(*parts, strict=True)]

    def heldout_points(self) -> list[Point]:
        return []  # recorded with the other points

    def advance(self) -> list[Trained]:
        """Train an epoch of all starts, or several whose steps are short."""
        return self._several_epochs() or [self._one_epoch()]

    def _several_epochs(self) -> list[Trained]:
        """Train several epochs by compiled loops, if they apply."""
        epochs = self._epochs_from(self.epoch)
        if not epochs or not self.adam.state:
            return []
        assert isinstance(self._full.moment, FactoredMoment)
        heldout = None if self._heldout is None else self._heldout.moment
        assert not isinstance(heldout, DenseMoment)
        steps = ShortSteps(self.loadings, self.log_noise, self.adam, self._full.moment, heldout)
        if not steps.keep_digits():
            return []
        before, fractions = self.masks.states(), self._fractions(epochs)
        masks = self.masks.draw(fractions)
        next_fractions = self._fractions(self._epochs_from(epochs.stop))
        with self.masks.prefetch(next_fractions) as drawing:
            curves = steps.take(masks, self.epoch, self.spec.evaluate_every, drawing)
        if curves.shape[-1] < len(epochs):
            epochs = epochs[: curves.shape[-1]]
            self.masks.restore(before)
            if not epochs:
                return []
            self.masks.draw(self._fractions(epochs))
        scores, lml, lml_heldout = curves.transpose(1, 2, 0).tolist()  # (E, S) each
        return [
            self._trained(epoch, [-self.dim * score for score in of_epoch], *log_probs)
            for epoch, of_epoch, *log_probs in zip(epochs, scores, lml, lml_heldout, strict=True)
        ]

    def _epochs_from(self, epoch: int) -> range:
        """Return the epochs from this one on that may be trained at once. Curves need the densities
        of their epoch, and the last epoch is not trained."""
        stops = (*self.spec.curve_at, self.spec.epochs)
        stop = min([stop for stop in stops if stop > epoch], default=epoch)
        return range(epoch, min(stop, epoch + self._at_once))

    def _fractions(self, epochs: range) -> list[float]:
        return [epoch / self.spec.epochs for epoch in epochs]

    def _one_epoch(self) -> Trained:
        self._choose_route(self._full)
        last = self.epoch == self.spec.epochs
        trained = self._trained(self.epoch, [], [], [])
        for step, batch in enumerate(self._batches()):
            fraction = self.epoch / self.spec.epochs
            try:
                loss = self._descent(batch, fraction)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                raise diverged(self.epoch, self.seeds, trained[0], torch.float64) from None
            losses = loss.tolist()
            if step == 0 and self._is_recorded(self.epoch):
                trained = self._trained(self.epoch, losses, *self._log_probs())
            self._check_finite(losses, trained[0])
            if last:
                break
            self.adam.step()
        return trained

    def _is_recorded(self, epoch: int) -> bool:
        return epoch == self.spec.epochs or epoch % self.spec.evaluate_every == 0

    def _log_probs(self) -> tuple[list[float], list[float]]:
        """Return the mean of log p of the data and of the held-out observations by each start."""
        lml = self._solver(self._full).recorded_log_prob().tolist()
        held = self._heldout
        return lml, [] if held is None else self._solver(held).recorded_log_prob().tolist()

    def _choose_route(self, data: _Centred) -> bool:
        """Switch to residuals if sums of moments are not precise enough on these data, and return
        whether the route changed. The switch is permanent, so that a resumed training takes the
        same route."""
        if self.by_residuals_from != NEVER:
            return False
        variances = data.moment.diagonal + (data.mean - self.mean).square()
        if keeps_digits(self.loadings, self._noises(), variances):
            return False
        self.by_residuals_from = self.epoch
        self._take_data()
        return True

    def _check_finite(self, losses: list[float], points: list[Point]) -> None:
        finite = zip(self.seeds, map(math.isfinite, losses), strict=True)
        if bad := [seed for seed, is_finite in finite if not is_finite]:
            raise diverged(self.epoch, bad, points, torch.float64)

    def _descent(self, data: _Centred, fraction: float) -> Tensor:  # (S,)
        """Return the loss, and add its gradient to the parameters."""
        if not self._by_score:
            self._forget_gradient()
            return self._backward(-self._solver(data).log_prob())
        masks = self._masks(fraction).transpose(0, 1)  # (B, S, D)
        parts = list(torch.split(masks, self._masks_at_once or len(masks)))
        return split_on_oom(lambda parts: self._by_masks(data, parts), parts, self._too_many)

    def _forget_gradient(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def _too_many(self, parts: list[Tensor]) -> None:
        self._masks_at_once = -(-len(parts[0]) // 2)

    def _by_masks(self, data: _Centred, parts: Sequence[Tensor]) -> Tensor:  # (S,)
        """Return the loss for the masks of all parts, (b, S, D) each, and add its gradient to the
        parameters."""
        self._forget_gradient()
        count = sum(map(len, parts))
        losses = []
        for part in parts:
            masks, solver = part.transpose(0, 1), self._solver(data)
            gradient = solver.score_gradient(masks, count)
            if gradient is None:
                scores = solver.scores(masks)
                losses.append(self._backward(-self.dim * (scores.sum(-1) / count)))
            else:
                losses.append(self._add_gradient(gradient))
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum(0)

    def _backward(self, loss: Tensor) -> Tensor:
        loss.sum().backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    @torch.no_grad()
    def _add_gradient(self, score: ScoreGradient) -> Tensor:
        _add(self.loadings, -self.dim * score.loadings)
        if self.log_noise.requires_grad:
            gradient = -self.dim * score.noise_variance * self._noise()
            alike = self.log_noise.shape[1] == 1
            _add(self.log_noise, gradient.sum(-1, keepdim=True) if alike else gradient)
        return -self.dim * score.score

    def _trained(
        self, epoch: int, losses: list[float], lml: list[float], lml_heldout: list[float]
    ) -> Trained:
        """Return the points of an epoch from the numbers of each start, if it is recorded, and the
        number of its masks."""
        masks = len(self.seeds) * self.spec.masks_of_epoch(epoch, self._observations, self.dim)
        if not losses or not self._is_recorded(epoch):
            return [], masks
        points = self._scored("loss", epoch, losses) if self._by_score else self._lml_losses(losses)
        points += self._exact("lml", epoch, lml)
        if self._by_score:
            points += self._scored("mpt", epoch, [-loss for loss in losses])
        if self._heldout is not None:
            points += self._exact("lml_heldout", epoch, lml_heldout)
        return points, masks

    def _lml_losses(self, losses: list[float]) -> list[Point]:
        batch_size, labels = self.spec.batch_size, self._labels
        return [
            lml_loss(self.epoch, loss, batch_size, of_start)
            for of_start, loss in zip(labels, losses, strict=True)
        ]

    def _scored(self, name: SeriesName, epoch: int, values: list[float]) -> list[Point]:
        masks = self.spec.masks_per_step(self.dim)
        return [
            score_of_step(name, epoch, value, masks, labels)
            for labels, value in zip(self._labels, values, strict=True)
        ]

    def _exact(self, name: SeriesName, epoch: int, values: list[float]) -> list[Point]:
        return [
            Point(name, epoch, value, 0.0, 0, labels)
            for labels, value in zip(self._labels, values, strict=True)
        ]

    def _solver(self, data: _Centred) -> Solver:
        moment = data.about(self.mean)
        by_residuals = self.by_residuals_from != NEVER
        return solver_of_step(self.loadings, self._noises(), moment, by_residuals)

    def _noise(self) -> Tensor:
        return self.log_noise.exp()

    def _noises(self) -> Tensor:  # (S, D)
        return self._noise().expand(len(self.seeds), self.dim)

    def _masks(self, fraction: float) -> Tensor:  # (S, B, D)
        return to_device(self.masks.draw([fraction])[:, 0], self.device)

    def _batches(self) -> Iterator[_Centred]:
        """Yield the moments of the observations of each step of an epoch."""
        if self.spec.batch_size is None:
            yield self._full
            return
        for rows in self.rows.epoch():
            x = self._rows(torch.stack(rows))
            batch = self._batch(x)
            route_changed = self._choose_route(batch)
            yield self._batch(x) if route_changed else batch

    def _rows(self, rows: Tensor) -> Tensor:  # (S, B) to (S, B, D), on the device
        rows = to_device(rows, self.device)
        if len(self._x) == 1:
            return self._x[0][rows]
        return torch.stack([x[indices] for x, indices in zip(self._x, rows, strict=True)])

    def _batch(self, x: Tensor) -> _Centred:
        """Return the mean and the second moment of the observations x (S, B, D) of a step."""
        if self.spec.learn_mean:
            return self._centred([x], self._low_rank_batches)
        return _Centred(self.mean, self._moment([x], [self.mean], self._low_rank_batches))

    def _centred(self, data: Sequence[Tensor], low_rank: bool) -> _Centred:
        """Return the moments of sets of observations (s, N, D). The sets are processed one by one
        because they may be large. With `low_rank` a moment may be compressed."""
        means = [x.double().mean(-2).to(self.device) for x in data]
        centred = _Centred(torch.cat(means), self._moment(data, means, low_rank))
        if self.spec.learn_mean:
            return centred
        return _Centred(self.mean, centred.about(self.mean))  # once for all steps

    def _moment(self, data: Sequence[Tensor], means: Sequence[Tensor], low_rank: bool) -> Moment:
        """Return the moments about the means, in the form that makes a training step fastest."""
        if self.by_residuals_from != NEVER:
            return _factors(data, means)
        matrices = torch.cat([second_moment(x, m) for x, m in zip(data, means, strict=True)])
        if low_rank:
            min_noise = self._noise().min().item()
            smaller = [compressed(matrix, min_noise) for matrix in matrices]
            factored = [moment for moment in smaller if isinstance(moment, FactoredMoment)]
            if len(factored) == len(smaller):
                return stacked(factored)
        return _factors(data, means) if self.dim <= SMALL else DenseMoment(matrices)

    def _tensor(self, parts: Sequence[Tensor], learned: bool = False) -> Tensor:
        stack = torch.stack([part.detach() for part in parts]).to(self.device, torch.float64)
        return stack.clone().requires_grad_(learned)

    def tensors(self) -> dict[str, Tensor]:
        return self.learned.tensors() | {ROUTE: torch.tensor(self.by_residuals_from)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.learned.restore(tensors)
        self.by_residuals_from = int(tensors[ROUTE])
        self._take_data()


def _add(parameter: Tensor, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def _factors(data: Sequence[Tensor], means: Sequence[Tensor]) -> FactoredMoment:
    """Return the moments of sets of observations about their means, as factors of the data."""
    return of_factor(torch.cat([data_factor(x, m) for x, m in zip(data, means, strict=True)]))
