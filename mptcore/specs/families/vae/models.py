"""Models with latent variables whose integral has no closed form: VAEs."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field

from mptcore.specs.base import ExperimentId, Problem, Spec
from mptcore.specs.data.arrays import DataSource, Precision

MOST_GRID_DIMS = 3
"""The most latent dimensions that are integrated over a grid."""
MOST_NODES = 2_000_000
"""The most nodes of a grid over all latent dimensions, once its nodes are doubled for a check."""


class Bernoulli(Spec):
    """x_j is 1 with probability sigmoid of the decoder's output, 0 otherwise."""

    distribution: Literal["bernoulli"]


class Gaussian(Spec):
    """x_j is normal about the decoder's output, with variance 1/noise_precision. It is not learned:
    on a constant pixel its likelihood would have no bound."""

    distribution: Literal["gaussian"]
    noise_precision: Precision


Objective = Literal["mpt", "elbo", "lml"]

LikelihoodSpec = Annotated[Bernoulli | Gaussian, Field(discriminator="distribution")]


class Grid(Spec):
    """`nodes` for each latent dimension."""

    method: str
    nodes: int

    def size(self, latent_dim: int) -> int:
        """Nodes in all."""
        return int(self.nodes**latent_dim)

    def doubled(self) -> Self:
        """A grid that this one is checked against."""
        return self.model_copy(update={"nodes": 2 * self.nodes})

    def of_another_kind(self) -> "UniformGrid":
        """Another one, that costs no more than the doubled: with nodes at other places, since a
        rule and its double can agree and be wrong, where the posterior falls between the nodes."""
        raise NotImplementedError


class GaussHermite(Grid):
    """Gauss–Hermite quadrature over the prior."""

    method: Literal["gauss_hermite"]
    nodes: Annotated[int, Field(ge=2, le=100)] = 20

    def of_another_kind(self) -> "UniformGrid":
        return UniformGrid(method="uniform_grid", nodes=2 * self.nodes, extent=8.0)


class UniformGrid(Grid):
    """Nodes at equal distances from −extent to extent, weighted by the prior's density. Finer in
    the middle than as many Gauss–Hermite nodes: better where the posterior is narrow."""

    method: Literal["uniform_grid"]
    nodes: Annotated[int, Field(ge=2, le=2000)] = 60
    extent: Annotated[float, Field(ge=3, le=20)] = 6.0

    def doubled(self) -> Self:
        """Wider too, so that it tells of what lies beyond."""
        return super().doubled().model_copy(update={"extent": 1.25 * self.extent})

    def of_another_kind(self) -> "UniformGrid":
        """No spacing of one is a multiple of the other's."""
        other = {"nodes": 3 * self.nodes // 2 + 1, "extent": 1.17 * self.extent}
        return self.model_copy(update=other)


AnyGrid = GaussHermite | UniformGrid


class Importance(Spec):
    """Self-normalised importance sampling: `draws` of z from a proposal that is fitted to the
    observed part of each observation by at most `steps` damped Gauss–Newton steps, weighted by
    p(z) p(x_R | z). A training step takes `train_draws` and `train_steps`, and holds the weights
    fixed in its gradient."""

    method: Literal["importance"]
    draws: Annotated[int, Field(ge=2, le=100_000)] = 200
    steps: Annotated[int, Field(ge=1, le=1000)] = 20
    train_draws: Annotated[int, Field(ge=2, le=100_000)] = 10
    train_steps: Annotated[int, Field(ge=1, le=1000)] = 5


class Recursive(Spec):
    """Recursive encoding and decoding (Rezende et al. 2014, App. F): from a draw of the model,
    `rounds` times z is drawn from the encoder's posterior and the masked dimensions from the
    decoder, in `draws` chains. The score is the logarithm of the mean of p(x_j | z) over the last
    z of the chains. These conditionals are not those of the model, so their scores are never final:
    they are there because the paper has them."""

    method: Literal["recursive"]
    draws: Annotated[int, Field(ge=1, le=100_000)] = 10
    rounds: Annotated[int, Field(ge=1, le=1000)] = 4


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
    or experiment, which takes the weights that the finished training run `experiment` kept for the
    same seed, or else for its first. Where that run had several objectives, `trained_by` says whose
    weights; by default those of the objective that is trained next, or the first one's."""

    family: str
    latent_dim: Annotated[int, Field(ge=1, le=4096)]
    likelihood: LikelihoodSpec
    init: Literal["random", "experiment"] = "random"
    experiment: ExperimentId | None = None
    trained_by: Objective | None = None

    def problems(self, data: DataSource) -> list[Problem]:
        """What is wrong with this model for that data."""
        problems = []
        if isinstance(self.likelihood, Bernoulli):
            problems += data.binary_problems()
        if (self.init == "experiment") != (self.experiment is not None):
            detail = "the id of the experiment whose weights are taken, with init experiment only"
            problems.append(Problem("/model/experiment", detail))
        if self.init != "experiment" and self.trained_by is not None:
            problems.append(Problem("/model/trained_by", "with init experiment only"))
        return problems

    def numbers_per_observation(self, dim: int) -> int:
        """Activations of one observation in the decoder."""
        return dim


class LinearVaeModel(LatentModel):
    """A decoder W z + b; with the Gaussian likelihood it is PPCA. `conditionals`: how the integral
    over z is taken in log p(x_j | x_R), in training and in scores: over a grid, for latent_dim up
    to 3, or with a linear encoder."""

    family: Literal["linear_vae"]
    conditionals: Annotated[
        GaussHermite | UniformGrid | Importance | Recursive, Field(discriminator="method")
    ] = GaussHermite(method="gauss_hermite")

    def problems(self, data: DataSource) -> list[Problem]:
        return super().problems(data) + grid_problems(
            self.conditionals, self.latent_dim, "/model/conditionals"
        )


class VaeModel(LatentModel):
    """A variational autoencoder: the encoder gives mean and variance of a normal q(z | x)."""

    family: Literal["vae"]
    network: Layers = Dense(layers="dense")
    conditionals: Annotated[Recursive | Importance, Field(discriminator="method")] = Importance(
        method="importance"
    )

    def problems(self, data: DataSource) -> list[Problem]:
        return super().problems(data) + self.network.problems(data.dim, "/model/network")

    def numbers_per_observation(self, dim: int) -> int:
        return self.network.numbers_per_observation(dim)


def grid_problems(method: Spec | None, latent_dim: int, pointer: str) -> list[Problem]:
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
