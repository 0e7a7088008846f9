"""Which model scores the data, and where its parameters come from."""

from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import ExperimentId, Problem, Spec
from mptcore.specs.data.arrays import DataSource, PpcaData, Precision

LatentDimensions = Annotated[int, Field(ge=1, le=100_000)]


class LinearGaussian(Spec):
    """x = W z + mu + e, z ~ N(0, I), with noise e independent per dimension.

    `init`: random draws W from N(0, 1), with the data's own mean; experiment takes the weights that
    the finished training run `experiment` kept, those of the same seed, or of its first where it
    had no such seed.
    """

    family: str
    latent_dim: LatentDimensions
    noise_precision: Precision | None = None
    init: str
    experiment: ExperimentId | None = None

    def problems(self, data: DataSource, pointer: str) -> list[Problem]:
        """What is wrong with this model for that data."""
        problems = []
        if self.latent_dim >= data.dim:
            detail = f"latent_dim is less than the data's {data.dim} dimensions"
            problems.append(Problem(f"{pointer}/latent_dim", f"{detail}, not {self.latent_dim}"))
        if self.init == "random" and self.noise_precision is None:
            detail = "init random needs a number above 0: maximum_likelihood would estimate it"
            problems.append(Problem(f"{pointer}/noise_precision", detail))
        if self.init == "experiment" and self.noise_precision is not None:
            detail = "init experiment brings its own: leave it null"
            problems.append(Problem(f"{pointer}/noise_precision", detail))
        if (self.init == "experiment") != (self.experiment is not None):
            detail = "the id of the experiment whose weights are taken, with init experiment only"
            problems.append(Problem(f"{pointer}/experiment", detail))
        return problems


class PpcaModel(LinearGaussian):
    """Probabilistic PCA: x = W z + mu + e, e ~ N(0, I / noise_precision).

    `init`: generator takes the parameters that generated the data; maximum_likelihood is the closed
    form of Tipping & Bishop (1999), which also estimates the noise precision where it is null.
    """

    family: Literal["ppca"]
    init: Literal["generator", "random", "maximum_likelihood", "experiment"] = "random"

    def problems(self, data: DataSource, pointer: str) -> list[Problem]:
        problems = super().problems(data, pointer)
        if self.init == "generator":
            problems += self._unlike_generator(data, pointer)
        return problems

    def _unlike_generator(self, data: DataSource, pointer: str) -> list[Problem]:
        if not isinstance(data, PpcaData):
            detail = f"generator is for data.source ppca; {data.source} has no generator"
            return [Problem(f"{pointer}/init", f"{detail}: use random or maximum_likelihood")]
        return [
            Problem(
                f"{pointer}/{name}",
                f"init generator takes the data's own {name}: {generated}",
            )
            for name in ("latent_dim", "noise_precision")
            if getattr(self, name) != (generated := getattr(data, name))
        ]


class FactorAnalysisModel(LinearGaussian):
    """Factor analysis: PPCA with a noise variance for each dimension, e ~ N(0, diag(psi)).

    `init`: random starts every dimension at noise_precision; maximum_likelihood runs the EM
    algorithm until the likelihood stands still, and estimates the noise variances.
    """

    family: Literal["factor_analysis"]
    init: Literal["random", "maximum_likelihood", "experiment"] = "random"

    def problems(self, data: DataSource, pointer: str) -> list[Problem]:
        problems = super().problems(data, pointer)
        if self.init == "maximum_likelihood" and self.noise_precision is not None:
            detail = "init maximum_likelihood estimates one for each dimension: leave it null"
            problems.append(Problem(f"{pointer}/noise_precision", detail))
        return problems


LinearGaussianSpec = Annotated[PpcaModel | FactorAnalysisModel, Field(discriminator="family")]
