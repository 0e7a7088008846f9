"""Linear Gaussian models: PPCA and factor analysis."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import ExperimentId, Problem, Spec
from mptcore.specs.data.arrays import DataSource, PpcaData, Precision
from mptcore.specs.data.columns import columns_are


def constant_columns(columns: Sequence[str], are_names: bool) -> str:
    """Return why factor analysis cannot estimate its noise with these constant columns."""
    which = columns_are(columns, are_names, "constant")
    detail = "so factor analysis has no maximum: leave out constant columns, or use family ppca"
    return f"{which}, {detail}"


LatentDimensions = Annotated[int, Field(ge=1, le=100_000)]


class LinearGaussian(Spec):
    """x = W z + mu + e, z ~ N(0, I), with noise e independent per dimension."""

    family: str
    """Family of the model."""
    latent_dim: LatentDimensions
    """Number of latent dimensions K, less than D."""
    noise_precision: Precision | None = None
    """1 / variance of the noise. null: estimated from the data, or read from `experiment`."""
    init: str
    """Source of the initial parameters."""
    experiment: ExperimentId | None = None
    """Id of the finished experiment that trained or fitted the model, with `init: experiment`. The
    model is that of the same seed, or of its first seed if it did not have this seed."""

    def problems(self, data: DataSource, pointer: str) -> list[Problem]:
        """Return the problems of this model with the data."""
        problems = []
        if self.latent_dim >= data.dim:
            detail = f"at most {data.dim - 1}, fewer than the data's {data.dim} dimensions"
            problems.append(Problem(f"{pointer}/latent_dim", f"{detail}, not {self.latent_dim}"))
        if self.init == "random" and self.noise_precision is None:
            detail = "init random needs a number above 0: maximum_likelihood would estimate it"
            problems.append(Problem(f"{pointer}/noise_precision", detail))
        if self.init == "experiment" and self.noise_precision is not None:
            detail = "init experiment brings its own: leave it null"
            problems.append(Problem(f"{pointer}/noise_precision", detail))
        if (self.init == "experiment") != (self.experiment is not None):
            detail = "the id of the experiment whose weights are used; only with init experiment"
            problems.append(Problem(f"{pointer}/experiment", detail))
        return problems


class PpcaModel(LinearGaussian):
    """Probabilistic PCA: x = W z + mu + e, e ~ N(0, I / noise_precision)."""

    family: Literal["ppca"]
    """Family of the model."""
    init: Literal["generator", "random", "maximum_likelihood", "experiment"] = "random"
    """Source of the parameters. `random` draws W from N(0, 1), with the data's mean. `generator`
    uses the parameters that generated the data. `maximum_likelihood` is the closed form of Tipping
    & Bishop (1999), which estimates `noise_precision` if it is null. `experiment` uses the weights
    of an earlier experiment."""

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
    """Factor analysis: PPCA with a noise variance for each dimension, e ~ N(0, diag(psi))."""

    family: Literal["factor_analysis"]
    """Family of the model."""
    init: Literal["random", "maximum_likelihood", "experiment"] = "random"
    """Source of the parameters. `random` draws W from N(0, 1), with the data's mean and
    `noise_precision` in every dimension. `maximum_likelihood` runs EM and L-BFGS-B until the
    likelihood no longer changes, and estimates the noise variances. `experiment` uses the weights
    of an earlier experiment."""

    def problems(self, data: DataSource, pointer: str) -> list[Problem]:
        problems = super().problems(data, pointer)
        if self.init == "maximum_likelihood" and self.noise_precision is not None:
            detail = "init maximum_likelihood estimates one for each dimension: leave it null"
            problems.append(Problem(f"{pointer}/noise_precision", detail))
        return problems


LinearGaussianSpec = Annotated[PpcaModel | FactorAnalysisModel, Field(discriminator="family")]
