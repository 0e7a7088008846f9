"""Experiments on models with latent variables whose integral has no closed form: VAEs."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mptcore.specs.base import Problem, Seeds, Spec, reject, seed_problems
from mptcore.specs.compute import Compute, Limits
from mptcore.specs.data import DataSource, MeasuredData, Precision
from mptcore.specs.masks import FixedSize, TrainSchedule
from mptcore.specs.models import ExperimentId, PpcaModel
from mptcore.specs.train import Steps
from mptcore.specs.vectors import Scoring

MOST_GRID_DIMS = 3
"""The most latent dimensions that are integrated over a grid."""
MOST_NODES = 2_000_000
"""The most nodes of a grid over all latent dimensions, once its nodes are doubled for a check."""

DEFAULT_MASKS = FixedSize(schedule="fixed", rate=0.15, per_size=1)

Objective = Literal["mpt", "elbo", "lml"]


class Bernoulli(Spec):
    """x_j is 1 with probability sigmoid of the decoder's output, 0 otherwise."""

    distribution: Literal["bernoulli"]


class Gaussian(Spec):
    """x_j is normal about the decoder's output, with variance 1/noise_precision. It is not learned:
    on a constant pixel its likelihood would have no bound."""

    distribution: Literal["gaussian"]
    noise_precision: Precision


Likelihood = Annotated[Bernoulli | Gaussian, Field(discriminator="distribution")]


class Grid(Spec):
    """`nodes` for each latent dimension."""

    method: str
    nodes: int

    def size(self, latent_dim: int) -> int:
        """Nodes in all."""
        return int(self.nodes**latent_dim)

    def doubled(self) -> Self:
        return self.model_copy(update={"nodes": 2 * self.nodes})


class GaussHermite(Grid):
    """Gauss–Hermite quadrature over the prior."""

    method: Literal["gauss_hermite"]
    nodes: Annotated[int, Field(ge=2, le=100)] = 20


class UniformGrid(Grid):
    """Nodes at equal distances from −extent to extent, weighted by the prior's density. Finer in
    the middle than as many Gauss–Hermite nodes: better where the posterior is narrow."""

    method: Literal["uniform_grid"]
    nodes: Annotated[int, Field(ge=2, le=2000)] = 40
    extent: Annotated[float, Field(gt=0, le=20)] = 4.5


AnyGrid = GaussHermite | UniformGrid


class Importance(Spec):
    """Self-normalised importance sampling: `draws` of z, half from the encoder's posterior (after
    `rounds` of encoding and decoding have filled in the masked dimensions), half from the prior,
    weighted by p(z) p(x_R | z)."""

    method: Literal["importance"]
    draws: Annotated[int, Field(ge=2, le=100_000)] = 64
    rounds: Annotated[int, Field(ge=1, le=1000)] = 3


class Recursive(Spec):
    """Recursive encoding and decoding (Rezende et al. 2014, App. F): from a draw of the model,
    `rounds` times z is drawn from the encoder's posterior and the masked dimensions from the
    decoder, in `draws` chains. The score is the logarithm of the mean of p(x_j | z) over the last
    z of the chains."""

    method: Literal["recursive"]
    draws: Annotated[int, Field(ge=1, le=100_000)] = 10
    rounds: Annotated[int, Field(ge=1, le=1000)] = 4


class Iwae(Spec):
    """The importance weighted bound from `samples` draws of the encoder's posterior (Burda et al.
    2016): below the LML in expectation, and closer with more."""

    method: Literal["iwae"]
    samples: Annotated[int, Field(ge=2, le=1_000_000)] = 500


class Ais(Spec):
    """Annealed importance sampling by Hamiltonian Monte Carlo (Neal 2001; Wu et al. 2017) from the
    prior to the posterior through `temperatures`, with `chains` for each of `observations` (held
    out ones where there are any). `simulated`: so many observations drawn from the model itself,
    whose LML is bracketed: forward AIS below it and reverse AIS above."""

    temperatures: Annotated[int, Field(ge=2, le=100_000)] = 200
    chains: Annotated[int, Field(ge=2, le=10_000)] = 8
    leapfrog_steps: Annotated[int, Field(ge=1, le=1000)] = 5
    observations: Annotated[int, Field(ge=1, le=100_000)] = 100
    simulated: Annotated[int, Field(ge=0, le=100_000)] = 0


class Dense(Spec):
    """Fully connected layers: the encoder's from the data on, the decoder's in reverse."""

    layers: Literal["dense"]
    widths: Annotated[
        tuple[Annotated[int, Field(ge=1, le=16_384)], ...],
        Field(min_length=1, max_length=16, strict=False),
    ] = (256,)
    activation: Literal["relu", "gelu", "tanh"] = "relu"

    def problems(self, dim: int, pointer: str) -> list[Problem]:
        """What is wrong with these layers for data of `dim` dimensions."""
        return []

    def numbers_per_observation(self, dim: int) -> int:
        """Activations of one observation in the decoder."""
        return dim + sum(self.widths)


class Convolutional(Spec):
    """For square images: convolutions that halve the side, one for each entry of `channels`, then a
    layer of `width`; the decoder's in reverse."""

    layers: Literal["convolutional"]
    channels: Annotated[
        tuple[Annotated[int, Field(ge=1, le=4096)], ...],
        Field(min_length=1, max_length=8, strict=False),
    ] = (32, 64)
    width: Annotated[int, Field(ge=1, le=16_384)] = 128
    activation: Literal["relu", "gelu", "tanh"] = "relu"

    def problems(self, dim: int, pointer: str) -> list[Problem]:
        side = math.isqrt(dim)
        if side * side != dim:
            detail = f"convolutions need square images; {dim} dimensions are not: use dense"
            return [Problem(f"{pointer}/layers", detail)]
        if side % 2 ** len(self.channels):
            detail = f"each halves the side, which is {side}: give fewer"
            return [Problem(f"{pointer}/channels", detail)]
        return []

    def numbers_per_observation(self, dim: int) -> int:
        halved = enumerate(self.channels)
        return dim + self.width + sum(c * (dim >> 2 * (i + 1)) for i, c in halved)


Layers = Annotated[Dense | Convolutional, Field(discriminator="layers")]


class LatentModel(Spec):
    """z ~ N(0, I), x_j independent given z. `init`: random, with the last bias at the data's mean,
    or experiment, which takes the weights that the finished training run `experiment` kept."""

    family: str
    latent_dim: Annotated[int, Field(ge=1, le=4096)]
    likelihood: Likelihood
    init: Literal["random", "experiment"] = "random"
    experiment: ExperimentId | None = None

    def problems(self, data: DataSource) -> list[Problem]:
        """What is wrong with this model for that data."""
        found = []
        if isinstance(self.likelihood, Bernoulli):
            found += _binary_problems(data)
        if (self.init == "experiment") != (self.experiment is not None):
            detail = "the id of the experiment whose weights are taken, with init experiment only"
            found.append(Problem("/model/experiment", detail))
        return found


class LinearVaeModel(LatentModel):
    """A decoder W z + b; with the Gaussian likelihood it is PPCA. `conditionals`: how the integral
    over z is taken in log p(x_j | x_R), in training and in scores: over a grid, for latent_dim up
    to 3, or with a linear encoder."""

    family: Literal["linear_vae"]
    conditionals: Annotated[
        GaussHermite | UniformGrid | Importance | Recursive, Field(discriminator="method")
    ] = GaussHermite(method="gauss_hermite")

    def problems(self, data: DataSource) -> list[Problem]:
        return super().problems(data) + _grid_problems(
            self.conditionals, self.latent_dim, "/model/conditionals"
        )


class VaeModel(LatentModel):
    """A variational autoencoder: the encoder gives mean and variance of a normal q(z | x)."""

    family: Literal["vae"]
    network: Layers = Dense(layers="dense")
    conditionals: Annotated[Recursive | Importance, Field(discriminator="method")] = Recursive(
        method="recursive"
    )

    def problems(self, data: DataSource) -> list[Problem]:
        return super().problems(data) + self.network.problems(data.dim, "/model/network")


def _binary_problems(data: DataSource) -> list[Problem]:
    if not isinstance(data, MeasuredData):
        detail = f"bernoulli is for data of 0 and 1; {data.source} has others: use gaussian"
        return [Problem("/model/likelihood/distribution", detail)]
    if data.source != "upload" and data.binarize is None:  # an upload may be binary itself
        detail = "threshold or stochastic: the likelihood bernoulli needs data of 0 and 1"
        return [Problem("/data/binarize", detail)]
    if data.standardize:
        return [Problem("/data/standardize", "the likelihood bernoulli needs data of 0 and 1")]
    return []


def _grid_problems(method: Spec | None, latent_dim: int, pointer: str) -> list[Problem]:
    if not isinstance(method, Grid):
        return []
    if latent_dim > MOST_GRID_DIMS:
        detail = (
            f"{method.method} is for latent_dim up to {MOST_GRID_DIMS}, not {latent_dim}: "
            "use importance, and iwae for the LML"
        )
        return [Problem(f"{pointer}/method", detail)]
    if method.doubled().size(latent_dim) > MOST_NODES:
        most = math.floor(MOST_NODES ** (1 / latent_dim) / 2 + 1e-9)
        detail = f"at most {most} for each of {latent_dim} latent dimensions, not {method.nodes}"
        return [Problem(f"{pointer}/nodes", detail)]
    return []


class LatentEvaluate(Scoring):
    """What is measured. `lml` says how the log marginal likelihood is computed: null is
    the model's own grid where it has one, else iwae. A grid is used for the scores too, and
    compared with one of twice the nodes."""

    lml: Annotated[GaussHermite | UniformGrid | Iwae, Field(discriminator="method")] | None = None
    ais: Ais | None = None


class LatentTrain(Steps):
    """All seeds from their own starts by Adam, once for each of `objectives` from the same starts:
    mpt maximises the score of `masks` times D, elbo the evidence lower bound, lml the log marginal
    likelihood by a grid. Where there is an encoder, mpt trains the decoder, and the ELBO of the
    decoder as it stands the encoder.

    Every `evaluate_every` epochs loss, mpt, elbo (with an encoder) and lml are recorded, lml by the
    model's own grid or by iwae with `lml_samples`.
    """

    objectives: Annotated[tuple[Objective, ...], Field(min_length=1, max_length=3, strict=False)]
    learning_rate: Annotated[float, Field(gt=0, le=100)] = 1e-3
    masks: TrainSchedule = DEFAULT_MASKS
    lml_samples: Annotated[int, Field(ge=2, le=1_000_000)] = 64

    def problems(self, data: DataSource) -> list[Problem]:
        found = super().problems(data)
        if len(set(self.objectives)) < len(self.objectives):
            found.append(Problem("/train/objectives", "an objective may be listed once only"))
        return found


class LatentExperiment(Spec):
    """One experiment on a VAE: trained, where `train` says how, and scored with masks, once for
    each seed. Series and metrics carry the label `objective` where there are several. `baseline`: a
    PPCA scored on the same data and masks; they then carry the label `model`."""

    model: Annotated[LinearVaeModel | VaeModel, Field(discriminator="family")]
    baseline: PpcaModel | None = None
    data: DataSource
    train: LatentTrain | None = None
    evaluate: LatentEvaluate = LatentEvaluate()
    seeds: Seeds = (0,)
    compute: Compute = Compute()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = self.data.problems() + self.model.problems(self.data)
        if self.baseline is not None:
            problems += self.baseline.problems(self.data, "/baseline")
            if isinstance(self.model.likelihood, Bernoulli):
                detail = "its density is no probability of data of 0 and 1: leave it null"
                problems.append(Problem("/baseline", detail))
        if self.train:
            problems += self.train.problems(self.data) + self._objective_problems(self.train)
        problems += self.evaluate.problems(self.data.dim) + self._evaluate_problems()
        problems += seed_problems(self.seeds)
        if problems:
            reject(problems)
        return self

    @property
    def has_grid(self) -> bool:
        return isinstance(self.model.conditionals, Grid)

    def lml_method(self) -> AnyGrid | Iwae:
        """How the log marginal likelihood is computed at the end."""
        if self.evaluate.lml is not None:
            return self.evaluate.lml
        own = self.model.conditionals
        return own if isinstance(own, AnyGrid) else Iwae(method="iwae")

    def mask_count(self) -> int:
        """Masks scored in all, over all seeds, those of training among them."""
        curves = 1 + len(self.train.curve_at if self.train else ())
        objectives = len(self.train.objectives) if self.train else 1
        one = self.evaluate.count(self.data.dim) * curves
        return len(self.seeds) * (one * objectives + self._train_masks() * objectives)

    def _train_masks(self) -> int:
        if self.train is None:
            return 0
        steps = self.train.epochs * self.train.steps_per_epoch(self.data.kept_n) + 1
        return steps * self.train.masks.step_count(self.data.dim)

    def _objective_problems(self, train: LatentTrain) -> list[Problem]:
        found = []
        for i, objective in enumerate(train.objectives):
            if objective == "lml" and not self.has_grid:
                detail = "lml is for a linear_vae whose conditionals are taken over a grid"
                found.append(Problem(f"/train/objectives/{i}", f"{detail}: use mpt or elbo"))
        return found

    def _evaluate_problems(self) -> list[Problem]:
        evaluate, found = self.evaluate, []
        if isinstance(evaluate.lml, Grid) and not self.has_grid:
            detail = "a grid is for a linear_vae whose conditionals are taken over one: use iwae"
            found.append(Problem("/evaluate/lml/method", detail))
        if isinstance(evaluate.lml, Iwae) and self.has_grid:
            detail = "this model has a grid and no encoder: use gauss_hermite or uniform_grid"
            found.append(Problem("/evaluate/lml/method", detail))
        if evaluate.ais is not None and self.has_grid:
            detail = "the grid of this model says more: leave it null"
            found.append(Problem("/evaluate/ais", detail))
        return found + _grid_problems(evaluate.lml, self.model.latent_dim, "/evaluate/lml")

    def memory_estimate(self) -> int:
        """About how many bytes a run takes."""
        n, dim, size = self.data.n, self.data.dim, 8 if self.compute.precision == "float64" else 4
        data = 3 * n * dim * size
        if not isinstance(self.model.conditionals, Grid):
            return data + self._network_bytes() + 2**28
        grid = self.model.conditionals.size(self.model.latent_dim)
        rows = n if self.train is None or self.train.batch_size is None else self.train.batch_size
        per_mask = 4 * rows * grid + 6 * grid * dim  # responsibilities, node probabilities
        masks = self.train.masks.step_count(dim) if self.train else 1
        return data + size * masks * per_mask

    def _network_bytes(self) -> int:
        size = 8 if self.compute.precision == "float64" else 4
        rows = self.data.n
        if self.train is not None and self.train.batch_size is not None:
            rows = self.train.batch_size
        if not isinstance(self.model, VaeModel):
            return 4 * size * rows * self.data.dim
        draws = self.model.conditionals.draws
        each = self.model.network.numbers_per_observation(self.data.dim)
        masks = self.train.masks.step_count(self.data.dim) if self.train else 1
        return 4 * size * rows * each * (draws * masks if self.train else 1)

    def limit_problems(self, limits: Limits) -> list[Problem]:
        """What is too large."""
        n, dim = self.data.n, self.data.dim
        if n * dim > limits.elements:
            detail = f"N · D is at most {limits.elements}; {n} · {dim} is more"
            return [Problem("/data", detail)]
        needed = self.memory_estimate()
        if needed > limits.memory_bytes:
            what = "nodes, " if self.has_grid else "conditionals.draws, "
            detail = (
                f"a run takes at most {limits.memory_bytes >> 20} MiB; this takes about "
                f"{needed >> 20}: lower {what}data.n, train.batch_size or the masks of a step"
            )
            pointer = "/model/conditionals/nodes" if self.has_grid else "/data"
            return [Problem(pointer, detail)]
        return []
