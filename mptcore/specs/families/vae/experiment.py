"""Experiments with VAEs: training, scores and marginal likelihood."""

from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import Problem, Spec
from mptcore.specs.compute import GPU_BATCH_BYTES, Limits
from mptcore.specs.evaluate import MaskEvaluation
from mptcore.specs.experiment import VectorExperiment
from mptcore.specs.families.linear_gaussian import PpcaModel
from mptcore.specs.families.vae.models import (
    AnyGrid,
    Bernoulli,
    GaussHermite,
    Grid,
    Importance,
    LinearVaeModel,
    Objective,
    Recursive,
    UniformGrid,
    VaeModel,
    grid_problems,
)
from mptcore.specs.masks import FixedSize, TrainSchedule
from mptcore.specs.train import EpochSchedule, one_or_more
from mptcore.specs.vectors import DataSource

MAX_STARTS = 20
"""Maximum number of starting points from which a proposal is fitted to an observation at once."""
DEFAULT_MASKS = FixedSize(schedule="fixed", rate=0.15, per_size=1)


class Iwae(Spec):
    """Importance sampling (Burda et al. 2016) from a proposal that is fitted to each observation by
    damped Gauss–Newton steps, minus its bias of first order in 1/samples."""

    method: Literal["iwae"]
    """Method of computation."""
    samples: Annotated[int, Field(ge=2, le=1_000_000)] = 500
    """Draws for each observation."""
    steps: Annotated[int, Field(ge=1, le=1000)] = 20
    """Maximum number of Gauss–Newton steps that fit the proposal to an observation."""


class Ais(Spec):
    """Annealed importance sampling by Hamiltonian Monte Carlo (Neal 2001; Wu et al. 2017), from the
    proposal of iwae to the posterior."""

    temperatures: Annotated[int, Field(ge=2, le=100_000)] = 200
    """Number of distributions from the proposal to the posterior."""
    chains: Annotated[int, Field(ge=2, le=10_000)] = 8
    """Chains for each observation."""
    leapfrog_steps: Annotated[int, Field(ge=1, le=1000)] = 5
    """Leapfrog steps of each Hamiltonian move."""
    observations: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Number of observations, held-out ones if there are any."""
    simulated: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Number of observations drawn from the model itself, whose LML is bracketed: forward AIS gives
    a lower and reverse AIS an upper bound."""


class VaeEvaluate(MaskEvaluation):
    """Scores of masks, and the log marginal likelihood."""

    lml: Annotated[GaussHermite | UniformGrid | Iwae, Field(discriminator="method")] | None = None
    """Computation of the log marginal likelihood. null: the model's own grid if it has one, else
    `iwae`. A grid is used for the scores too, and compared with a grid of twice the nodes and a
    grid of another kind."""
    ais: Ais | None = None
    """Annealed importance sampling, which brackets the LML to check it. null: none."""


class VaeTrain(EpochSchedule):
    """Training by Adam. All seeds start from their own parameters, once for each objective. With an
    encoder, mpt trains the decoder, and the encoder is trained by the ELBO of the current
    decoder."""

    objective: Annotated[
        tuple[Objective, ...],
        Field(min_length=1, max_length=3),
        one_or_more(Objective),
    ]
    """Objectives to train, each from the same start. `mpt` maximizes D times the score of `masks`,
    `elbo` the evidence lower bound, `lml` the log marginal likelihood by a grid."""
    learning_rate: Annotated[float, Field(gt=0, le=100)] = 1e-3
    """Learning rate of Adam."""
    masks: TrainSchedule = DEFAULT_MASKS
    """Masks of a training step."""
    lml_samples: Annotated[int, Field(ge=2, le=1_000_000)] = 64
    """Draws of z for each observation in the recorded `lml`, which is always importance
    sampling."""

    def problems(self, data: DataSource) -> list[Problem]:
        problems = super().problems(data)
        if len(set(self.objective)) < len(self.objective):
            problems.append(Problem("/train/objective", "an objective may be listed once only"))
        return problems


class VaeExperiment(VectorExperiment):
    """Experiments with VAEs. The model is trained if `train` is given, and scored with masks, once
    for each seed. With several objectives, series and metrics carry the label `objective`."""

    model: Annotated[LinearVaeModel | VaeModel, Field(discriminator="family")]
    """Model that is scored."""
    baseline: PpcaModel | None = None
    """A PPCA for the same data and masks. Results then have the label `model`."""
    train: VaeTrain | None = None
    """Training before the scores. null: no training."""
    evaluate: VaeEvaluate = VaeEvaluate()
    """Measurements of the model."""

    def problems(self) -> list[Problem]:
        problems = super().problems() + self._evaluate_problems()
        if self.train:
            problems += self._objective_problems(self.train)
        if self.compute.memory_mib is not None:
            detail = "a VAE uses the memory that its draws or nodes need: leave it null"
            problems.append(Problem("/compute/memory_mib", detail))
        return problems

    def model_problems(self) -> list[Problem]:
        problems = self.model.problems(self.data)
        if self.baseline is not None:
            problems += self.baseline.problems(self.data, "/baseline")
            if isinstance(self.model.likelihood, Bernoulli):
                detail = "a PPCA has a density, not probabilities of 0 and 1: leave it null"
                problems.append(Problem("/baseline", detail))
        return problems

    @property
    def starts(self) -> int:
        """Number of trainings: one for each seed and objective."""
        return super().starts * (len(self.train.objective) if self.train else 1)

    @property
    def has_grid(self) -> bool:
        return isinstance(self.model.conditionals, Grid)

    def lml_method(self) -> AnyGrid | Iwae:
        """Return the method that computes the final log marginal likelihood."""
        if self.evaluate.lml is not None:
            return self.evaluate.lml
        conditionals = self.model.conditionals
        return conditionals if isinstance(conditionals, AnyGrid) else Iwae(method="iwae")

    def _objective_problems(self, train: VaeTrain) -> list[Problem]:
        problems = []
        for i, objective in enumerate(train.objective):
            if objective == "lml" and not self.has_grid:
                detail = "lml is for a linear_vae whose conditionals are taken over a grid"
                problems.append(Problem(f"/train/objective/{i}", f"{detail}: use mpt or elbo"))
        return problems

    def _evaluate_problems(self) -> list[Problem]:
        evaluate, problems = self.evaluate, []
        if isinstance(evaluate.lml, Grid) and not self.has_grid:
            detail = "a grid is for a linear_vae whose conditionals are taken over one: use iwae"
            problems.append(Problem("/evaluate/lml/method", detail))
        if isinstance(evaluate.lml, Iwae) and self.has_grid:
            detail = "this model has a grid and no encoder: use gauss_hermite or uniform_grid"
            problems.append(Problem("/evaluate/lml/method", detail))
        if evaluate.ais is not None and self.has_grid:
            detail = "the grid of this model is more precise: leave it null"
            problems.append(Problem("/evaluate/ais", detail))
        recursive = isinstance(self.model.conditionals, Recursive)
        if evaluate.masks.design == "exhaustive" and recursive:
            detail = "with recursion only drawn masks give an error: use independent"
            problems.append(Problem("/evaluate/masks/design", detail))
        return problems + grid_problems(evaluate.lml, self.model.latent_dim, "/evaluate/lml")

    @property
    def memory_field(self) -> str:
        return "/model/conditionals/nodes" if self.has_grid else "/data"

    def memory_estimate(self) -> int:
        numbers = self._grid_numbers() if self.has_grid else self._sampling_numbers()
        batch_bytes = GPU_BATCH_BYTES if self.compute.device != "cpu" else 0
        numbers += 3 * self.data.n * self.data.dim
        return self._number_bytes() * numbers + batch_bytes + 2**28

    def _number_bytes(self) -> int:
        return 8 if self.compute.precision == "float64" else 4

    def _step(self) -> tuple[int, int]:
        """Return the numbers of observations and masks of a training step."""
        if self.train is None:
            return 0, 0
        return self.train.batch_size or self.data.n, self.train.masks.step_count(self.data.dim)

    def _grid_numbers(self) -> int:
        """Return the number of outputs at all nodes, and of the values that the gradient needs."""
        dim, latent_dim = self.data.dim, self.model.latent_dim
        rows, masks = self._step()
        method = self.lml_method()
        assert isinstance(self.model.conditionals, Grid)
        assert isinstance(method, Grid)
        trained = self.model.conditionals.size(latent_dim)
        return 3 * method.size(latent_dim) * dim + masks * trained * (4 * rows + 6 * dim)

    def _sampling_numbers(self) -> int:
        """Return the number of activations of a training step, and of the smallest batch that is
        scored."""
        width = self.model.numbers_per_observation(self.data.dim)
        rows, masks = self._step()
        draws, ais = self._latent_values(self.model.conditionals), self.evaluate.ais
        latent_dim = self.model.latent_dim  # derivatives are as large as this number of draws
        # Memory kept for the gradient, and memory for the part that is being computed.
        numbers = rows * width * (4 * masks * self._train_latent_values() + latent_dim)
        numbers += 6 * max(draws, MAX_STARTS * latent_dim) * width
        return numbers + (6 * ais.chains * width if ais else 0)

    def _latent_values(self, method: Spec) -> int:
        """Return the number of values of z for a conditional or the LML of one observation."""
        if isinstance(method, Grid):
            return method.size(self.model.latent_dim)
        if isinstance(method, Iwae):
            return method.samples
        assert isinstance(method, Importance | Recursive)
        return method.draws

    def _train_latent_values(self) -> int:
        """Return the number of values of z for a conditional in a training step."""
        method = self.model.conditionals
        return method.train_draws if isinstance(method, Importance) else self._latent_values(method)

    def work(self) -> int:
        """Estimate how often an output of the decoder is computed or read."""
        method, train = self.lml_method(), self.train
        curves = 1 + len(train.curve_at if train else ())
        scored = self._latent_values(method if self.has_grid else self.model.conditionals)
        latent_values = curves * (
            self.evaluate.count(self.data.dim) * scored + self._latent_values(method)
        )
        if train is not None:
            trained = self._step()[1] * self._train_latent_values()
            recorded = train.epochs // train.evaluate_every + 1
            latent_values += train.epochs * trained + recorded * train.lml_samples
        work = self.data.n * latent_values
        if (ais := self.evaluate.ais) is not None:
            chains = (ais.observations + 2 * ais.simulated) * ais.chains
            work += 2 * ais.temperatures * ais.leapfrog_steps * chains
        return self.starts * self.data.dim * work

    def limit_problems(self, limits: Limits) -> list[Problem]:
        draws = "nodes" if self.has_grid else "draws, samples, chains"
        advice = f"lower {draws}, data.n, train.batch_size or the masks of a step"
        if problems := self.element_problems(limits) or self.memory_problems(limits, advice):
            return problems
        if self.work() > limits.latent_work:
            detail = (
                f"masks · N · D · (nodes or draws) in all is at most {limits.latent_work:.0e}; "
                f"this is {self.work():.2e}: lower {draws}, data.n, masks or epochs"
            )
            return [Problem("/evaluate/masks", detail)]
        return super().limit_problems(limits)
