"""Models with latent variables whose integral has no closed form: VAEs."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field

from mptcore.specs.base import ExperimentId, Problem, Spec
from mptcore.specs.vectors import DataSource, Precision

MAX_GRID_DIMS = 3
"""Maximum number of latent dimensions that are integrated over a grid."""
MAX_NODES = 2_000_000
"""Maximum number of nodes of a grid over all latent dimensions, after its nodes are doubled for a
check."""


class Bernoulli(Spec):
    """x_j is 1 with probability sigmoid of the decoder's output, else 0."""

    distribution: Literal["bernoulli"]
    """Distribution of a dimension given the decoder's output."""


class Gaussian(Spec):
    """x_j is normal with the decoder's output as its mean. The variance is not learned: on a
    constant pixel the likelihood would be unbounded."""

    distribution: Literal["gaussian"]
    """Distribution of a dimension given the decoder's output."""
    noise_precision: Precision
    """1 / variance of the noise."""


Objective = Literal["mpt", "elbo", "lml"]

LikelihoodSpec = Annotated[Bernoulli | Gaussian, Field(discriminator="distribution")]


class Grid(Spec):
    """Base class of the grids over z."""

    method: str
    """Method of computation."""
    nodes: int
    """Nodes of the grid in each latent dimension."""

    def size(self, latent_dim: int) -> int:
        """Return the number of nodes over all latent dimensions."""
        return int(self.nodes**latent_dim)

    def doubled(self) -> Self:
        """Return a finer grid to check this grid against."""
        return self.model_copy(update={"nodes": 2 * self.nodes})

    def of_another_kind(self) -> "UniformGrid":
        """Return a grid with nodes at other positions that costs no more than the doubled grid. A
        rule and its double can agree and be wrong, if the posterior lies between the nodes."""
        raise NotImplementedError


class GaussHermite(Grid):
    """Gauss–Hermite quadrature over the prior."""

    method: Literal["gauss_hermite"]
    """Method of computation."""
    nodes: Annotated[int, Field(ge=2, le=100)] = 20
    """Nodes of the grid in each latent dimension."""

    def of_another_kind(self) -> "UniformGrid":
        return UniformGrid(method="uniform_grid", nodes=2 * self.nodes, extent=8.0)


class UniformGrid(Grid):
    """Nodes at equal distances, weighted by the prior's density. In the middle it is finer than
    Gauss–Hermite with as many nodes, so better for a narrow posterior."""

    method: Literal["uniform_grid"]
    """Method of computation."""
    nodes: Annotated[int, Field(ge=2, le=2000)] = 60
    """Nodes of the grid in each latent dimension."""
    extent: Annotated[float, Field(ge=3, le=20)] = 6.0
    """The grid spans −extent to extent."""

    def doubled(self) -> Self:
        """Return a finer and wider grid, which also covers the region beyond this grid."""
        return super().doubled().model_copy(update={"extent": 1.25 * self.extent})

    def of_another_kind(self) -> "UniformGrid":
        """Return a grid whose spacing is not a multiple of this grid's spacing."""
        other = {"nodes": 3 * self.nodes // 2 + 1, "extent": 1.17 * self.extent}
        return self.model_copy(update=other)


AnyGrid = GaussHermite | UniformGrid


class Importance(Spec):
    """Self-normalized importance sampling: z is drawn from a proposal that is fitted to the
    observed part of each observation by damped Gauss–Newton steps, and weighted by p(z) p(x_R | z).
    The gradient of a training step includes that of the weights, for fixed draws."""

    method: Literal["importance"]
    """Method of computation."""
    draws: Annotated[int, Field(ge=2, le=100_000)] = 200
    """Draws of z for each conditional."""
    steps: Annotated[int, Field(ge=1, le=1000)] = 20
    """Maximum number of Gauss–Newton steps that fit the proposal to an observation."""
    train_draws: Annotated[int, Field(ge=2, le=100_000)] = 10
    """Draws of z for each conditional in a training step."""
    train_steps: Annotated[int, Field(ge=1, le=1000)] = 5
    """Maximum number of Gauss–Newton steps of a proposal in a training step."""


class Recursive(Spec):
    """Recursive encoding and decoding (Rezende et al. 2014, App. F): z is drawn from the encoder's
    posterior and the masked dimensions from the decoder, in turn. The score is the logarithm of the
    mean of p(x_j | z) over the last z of the chains. These are not the model's own conditionals, so
    their scores are never final. They are included because the paper uses them."""

    method: Literal["recursive"]
    """Method of computation."""
    draws: Annotated[int, Field(ge=1, le=100_000)] = 10
    """Chains for each conditional."""
    rounds: Annotated[int, Field(ge=1, le=1000)] = 4
    """Number of times that z and the masked dimensions are drawn in turn."""


class Dense(Spec):
    """Fully connected layers. The decoder has the encoder's layers in reverse order."""

    layers: Literal["dense"]
    """Type of the layers."""
    widths: Annotated[
        tuple[Annotated[int, Field(ge=1, le=16_384)], ...],
        Field(min_length=1, max_length=16),
    ] = (256,)
    """Widths of the encoder's layers, beginning at the data."""
    activation: Literal["relu", "gelu", "tanh"] = "relu"
    """Activation function between layers."""

    def problems(self, dim: int, pointer: str) -> list[Problem]:
        """Return the problems of these layers with data of `dim` dimensions."""
        return []

    def numbers_per_observation(self, dim: int) -> int:
        """Return the number of activations of one observation in the decoder."""
        return dim + sum(self.widths)


class Convolutional(Spec):
    """For square images: convolutions that halve the side, then a dense layer. The decoder has
    these layers in reverse order."""

    layers: Literal["convolutional"]
    """Type of the layers."""
    channels: Annotated[
        tuple[Annotated[int, Field(ge=1, le=4096)], ...],
        Field(min_length=1, max_length=8),
    ] = (32, 64)
    """Channels of each convolution."""
    width: Annotated[int, Field(ge=1, le=16_384)] = 128
    """Width of the dense layer after the convolutions."""
    activation: Literal["relu", "gelu", "tanh"] = "relu"
    """Activation function between layers."""

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
    """z ~ N(0, I), x_j independent given z."""

    family: str
    """Family of the model."""
    latent_dim: Annotated[int, Field(ge=1, le=4096)]
    """Number of latent dimensions."""
    likelihood: LikelihoodSpec
    """Distribution of the observed dimensions given the decoder's output."""
    init: Literal["random", "experiment"] = "random"
    """Source of the initial weights. `random` draws them, with the data's mean as the last bias;
    `experiment` uses the weights of a training run."""
    experiment: ExperimentId | None = None
    """Id of the finished training run whose weights are used, with `init: experiment`: those of the
    same seed, or of its first seed if it did not have this seed."""
    trained_by: Objective | None = None
    """Objective whose weights are used, if the training run had several. null: the objective that
    is trained next, or the run's first."""

    def problems(self, data: DataSource) -> list[Problem]:
        """Return the problems of this model with the data."""
        problems = []
        if isinstance(self.likelihood, Bernoulli):
            problems += data.binary_problems(
                "the likelihood bernoulli", "/model/likelihood/distribution", "use gaussian"
            )
        if (self.init == "experiment") != (self.experiment is not None):
            detail = "the id of the experiment whose weights are used; only with init experiment"
            problems.append(Problem("/model/experiment", detail))
        if self.init != "experiment" and self.trained_by is not None:
            problems.append(Problem("/model/trained_by", "with init experiment only"))
        return problems

    def numbers_per_observation(self, dim: int) -> int:
        """Return the number of activations of one observation in the decoder."""
        return dim


class LinearVaeModel(LatentModel):
    """A decoder W z + b. With the Gaussian likelihood it is PPCA."""

    family: Literal["linear_vae"]
    """Family of the model."""
    conditionals: Annotated[
        GaussHermite | UniformGrid | Importance | Recursive, Field(discriminator="method")
    ] = GaussHermite(method="gauss_hermite")
    """Computation of log p(x_j | x_R), the integral over z, in training and in scores: over a grid,
    for `latent_dim` up to 3, or with a linear encoder."""

    def problems(self, data: DataSource) -> list[Problem]:
        return super().problems(data) + grid_problems(
            self.conditionals, self.latent_dim, "/model/conditionals"
        )


class VaeModel(LatentModel):
    """A variational autoencoder: the encoder gives mean and variance of a normal q(z | x)."""

    family: Literal["vae"]
    """Family of the model."""
    network: Layers = Dense(layers="dense")
    """Layers of encoder and decoder."""
    conditionals: Annotated[Recursive | Importance, Field(discriminator="method")] = Importance(
        method="importance"
    )
    """Computation of log p(x_j | x_R), the integral over z, in training and in scores."""

    def problems(self, data: DataSource) -> list[Problem]:
        return super().problems(data) + self.network.problems(data.dim, "/model/network")

    def numbers_per_observation(self, dim: int) -> int:
        return self.network.numbers_per_observation(dim)


def grid_problems(method: Spec | None, latent_dim: int, pointer: str) -> list[Problem]:
    """Return a problem if the grid has too many latent dimensions or nodes."""
    if not isinstance(method, Grid):
        return []
    if latent_dim > MAX_GRID_DIMS:
        detail = (
            f"{method.method} is for latent_dim up to {MAX_GRID_DIMS}, not {latent_dim}: "
            "use importance, and iwae for the LML"
        )
        return [Problem(f"{pointer}/method", detail)]
    if method.doubled().size(latent_dim) > MAX_NODES:
        max_nodes = math.floor(MAX_NODES ** (1 / latent_dim) / 2 + 1e-9)
        detail = (
            f"at most {max_nodes} for each of {latent_dim} latent dimensions, not {method.nodes}"
        )
        return [Problem(f"{pointer}/nodes", detail)]
    return []
