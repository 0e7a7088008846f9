"""Training all starts of an experiment together, as one batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mptcore.data.arrays import Dataset
from mptcore.families.linear_gaussian.conditionals import Conditionals
from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.families.linear_gaussian.gradients import score_gradient
from mptcore.families.linear_gaussian.moments import (
    DenseMoment,
    FactoredMoment,
    Moment,
    compressed,
    data_factor,
    second_moment,
    stacked,
)
from mptcore.families.linear_gaussian.residuals import Residuals
from mptcore.families.linear_gaussian.rounding import keeps_digits
from mptcore.protocol.records import Point, SeriesName
from mptcore.specs import FactorAnalysisModel, LinearGaussianSpec, Train
from mptcore.training.adam import Adam
from mptcore.training.learned import Learned
from mptcore.training.loop import Schedule, diverged
from mptcore.training.step_masks import StepMasks
from mptcore.training.step_points import lml_loss, score_of_step
from mptcore.training.step_rows import StepRows

SMALL = 64
"""Up to so many dimensions a moment has its factor, whatever its rank, for gradients by hand."""

NEVER = -1
ROUTE = "by residuals from"


@dataclass(frozen=True)
class _Centred:
    """Data's mean and their moment about it; one for all starts, or stacked for each."""

    mean: Tensor  # (S or 1, D)
    moment: Moment

    def about(self, mean: Tensor) -> Moment:
        """The moment about another mean (S, D): C + d dᵀ with d the distance between them."""
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
    """Adam on the loadings W (S, D, K) of S starts, and on the mean and the logarithm of the noise
    variance where the spec says so. Every sum over starts has gradients that do not mix them."""

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
        """The epoch from which sums of moments do not keep their digits."""
        shared = all(dataset is datasets[0] for dataset in datasets)
        self._datasets = datasets[:1] if shared else datasets
        self._of_starts = datasets
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
        observations = len(datasets[0].x)
        self.rows = StepRows(observations, spec.batch_size or observations, seeds)
        generators = {**self.masks.generators(), **self.rows.generators()}
        self.learned = Learned(self.parameters, self.adam, generators)
        self.epoch = 0
        self._take_data()

    def _take_data(self) -> None:
        fixed_noise = not self.spec.learn_noise_precision
        self._full = self._centred([dataset.x[None] for dataset in self._datasets], fixed_noise)
        # In few dimensions it costs more to find a batch's rank than a low one saves.
        low_rank = isinstance(self._full.moment, FactoredMoment)
        self._low_rank_batches = low_rank and self.dim > SMALL
        held = [d.heldout[None] for d in self._datasets if d.heldout is not None]
        self._heldout = self._centred(held, fixed_noise) if held else None

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
        """Each start's density as it stands."""
        noise = self._noises()
        parts = [part.detach().clone() for part in (self.loadings, self.mean, noise)]
        return [LowRankGaussian(*of_start) for of_start in zip(*parts, strict=True)]

    def heldout_points(self) -> list[Point]:
        return []  # they are measured with the others

    def advance(self) -> tuple[list[Point], int]:
        """One epoch of all starts."""
        self._choose_route(self._full)
        last = self.epoch == self.spec.epochs
        recorded = last or self.epoch % self.spec.evaluate_every == 0
        points: list[Point] = []
        for i, batch in enumerate(self._batches()):
            fraction = self.epoch / self.spec.epochs
            try:
                loss = self._descent(batch, fraction)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                raise diverged(self.epoch, self.seeds, points) from None
            if i == 0 and recorded:
                points = list(self._points(loss))
            self._check_finite(loss, points)
            if last:
                break
            self.adam.step()
        observations = len(self._datasets[0].x)
        masks = self.spec.masks_of_epoch(self.epoch, observations, self.dim)
        return points, len(self.seeds) * masks

    def _choose_route(self, data: _Centred) -> bool:
        """Whether the route changes before a step on these data. Once by residuals, always by
        residuals: a resumed training takes the same route."""
        if self.by_residuals_from != NEVER:
            return False
        variances = data.moment.diagonal + (data.mean - self.mean).square()
        if keeps_digits(self.loadings, self._noises(), variances):
            return False
        self.by_residuals_from = self.epoch
        self._take_data()
        return True

    def _check_finite(self, loss: Tensor, points: list[Point]) -> None:
        bad = (~loss.isfinite()).nonzero().flatten().tolist()
        if bad:
            raise diverged(self.epoch, [self.seeds[i] for i in bad], points)

    def _descent(self, data: _Centred, fraction: float) -> Tensor:  # (S,)
        """The loss; its gradient is left with the parameters."""
        conditionals = self._conditionals(data)
        by_hand = isinstance(data.moment, FactoredMoment) and not self.spec.learn_mean
        if by_hand and self._by_score and isinstance(conditionals, Conditionals):
            return self._descent_by_hand(conditionals, fraction)
        self.adam.zero_grad(set_to_none=True)
        loss = self._loss(data, fraction)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _descent_by_hand(self, conditionals: Conditionals, fraction: float) -> Tensor:
        with torch.no_grad():
            score = score_gradient(conditionals, self._masks(fraction))
            self.loadings.grad = -self.dim * score.loadings
            if self.log_noise.requires_grad:
                gradient = -self.dim * score.noise_variance * self._noise()
                alike = self.log_noise.shape[1] == 1
                self.log_noise.grad = gradient.sum(-1, keepdim=True) if alike else gradient
        return -self.dim * score.score

    def _loss(self, data: _Centred, fraction: float) -> Tensor:  # (S,)
        conditionals = self._conditionals(data)
        if not self._by_score:
            return -self._log_marginal(conditionals)
        scores = conditionals.scores(self._masks(fraction))
        return -self.dim * scores.mean(-1)

    def _points(self, loss: Tensor) -> Iterator[Point]:
        """The series of this epoch, one point for each start."""
        with torch.no_grad():
            lml = self._log_marginal(self._conditionals(self._full))
            held = self._heldout
            lml_heldout = None if held is None else self._log_marginal(self._conditionals(held))
        yield from self._loss_points(loss)
        yield from self._exact("lml", lml)
        if self._by_score:
            yield from self._scored("mpt", -loss)
        if lml_heldout is not None:
            yield from self._exact("lml_heldout", lml_heldout)

    def _loss_points(self, loss: Tensor) -> Iterator[Point]:
        if self._by_score:
            yield from self._scored("loss", loss)
            return
        for seed, value in zip(self.seeds, loss.tolist(), strict=True):
            yield lml_loss(self.epoch, value, self.spec.batch_size, {"seed": seed})

    def _scored(self, name: SeriesName, values: Tensor) -> Iterator[Point]:
        masks = self.spec.masks_per_step(self.dim)
        for seed, value in zip(self.seeds, values.tolist(), strict=True):
            yield score_of_step(name, self.epoch, value, masks, {"seed": seed})

    def _exact(self, name: SeriesName, values: Tensor) -> Iterator[Point]:
        for seed, value in zip(self.seeds, values.tolist(), strict=True):
            yield Point(name, self.epoch, value, 0.0, 0, {"seed": seed})

    def _conditionals(self, data: _Centred) -> Conditionals | Residuals:
        moment = data.about(self.mean)
        if self.by_residuals_from == NEVER:
            return Conditionals(self.loadings, self._noises(), moment)
        assert isinstance(moment, FactoredMoment)
        return Residuals(self.loadings, self._noises(), moment.factor)

    def _log_marginal(self, conditionals: Conditionals | Residuals) -> Tensor:  # (S,)
        return conditionals.log_prob()

    def _noise(self) -> Tensor:
        return self.log_noise.exp()

    def _noises(self) -> Tensor:  # (S, D)
        return self._noise().expand(len(self.seeds), self.dim)

    def _masks(self, fraction: float) -> Tensor:  # (S, B, D)
        return self.masks.draw(fraction).to(self.device)

    def _batches(self) -> Iterator[_Centred]:
        """The moments of the observations of each step of an epoch."""
        if self.spec.batch_size is None:
            yield self._full
            return
        for rows in self.rows.epoch():
            pairs = zip(self._of_starts, rows, strict=True)
            x = [torch.stack([dataset.x[own] for dataset, own in pairs])]
            batch = self._centred(x, self._low_rank_batches)
            route_changed = self._choose_route(batch)
            yield self._centred(x, self._low_rank_batches) if route_changed else batch

    def _centred(self, data: Sequence[Tensor], low_rank: bool) -> _Centred:
        """Of sets of observations (s, N, D), one after the other, for they may be large. Where
        `low_rank`, their moment may be."""
        means = [x.double().mean(-2) for x in data]
        quick = self.by_residuals_from == NEVER
        moment = self._moment(data, means, low_rank) if quick else _factors(data, means)
        centred = _Centred(torch.cat(means).to(self.loadings), moment.to(self.loadings))
        if self.spec.learn_mean:
            return centred
        return _Centred(self.mean, centred.about(self.mean))  # once for all steps

    def _moment(self, data: Sequence[Tensor], means: Sequence[Tensor], low_rank: bool) -> Moment:
        """About their means, in the form that is quickest to descend by."""
        pairs = zip(data, means, strict=True)
        matrices = torch.cat([second_moment(x, mean) for x, mean in pairs])
        if low_rank:
            least = self._noise().min().item()
            smaller = [compressed(matrix, least) for matrix in matrices]
            factored = [moment for moment in smaller if isinstance(moment, FactoredMoment)]
            if len(factored) == len(smaller):
                return stacked(factored)
        return _factors(data, means) if self.dim <= SMALL else DenseMoment(matrices)

    def _tensor(self, parts: Sequence[Tensor], learned: bool = False) -> Tensor:
        together = torch.stack([part.detach() for part in parts]).to(self.device, torch.float64)
        return together.clone().requires_grad_(learned)

    def tensors(self) -> dict[str, Tensor]:
        return self.learned.tensors() | {ROUTE: torch.tensor(self.by_residuals_from)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.learned.restore(tensors)
        self.by_residuals_from = int(tensors[ROUTE])
        self._take_data()


def _factors(data: Sequence[Tensor], means: Sequence[Tensor]) -> FactoredMoment:
    """The moments of sets of observations about their means, by the data's factors."""
    factor = torch.cat([data_factor(x, mean) for x, mean in zip(data, means, strict=True)])
    return FactoredMoment(factor, factor.square().sum(-1))
