"""Which model scores the data, and where its parameters come from."""

from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import Problem, Spec
from mptcore.specs.data import DataSource, PpcaData, Precision


class PpcaModel(Spec):
    """Probabilistic PCA: x = W z + mu + e, e ~ N(0, I / noise_precision).

    `init`: generator takes the parameters that generated the data; random draws W from N(0, 1);
    maximum_likelihood is the closed form of Tipping & Bishop (1999), which also estimates the
    noise precision where it is null.
    """

    family: Literal["ppca"]
    latent_dim: Annotated[int, Field(ge=1, le=100_000)]
    noise_precision: Precision | None = None
    init: Literal["generator", "random", "maximum_likelihood"] = "random"

    def problems(self, data: DataSource, pointer: str) -> list[Problem]:
        """What is wrong with this model for that data."""
        found = []
        if self.latent_dim >= data.dim:
            detail = f"latent_dim is less than the data's {data.dim} dimensions"
            found.append(Problem(f"{pointer}/latent_dim", f"{detail}, not {self.latent_dim}"))
        if self.init == "generator":
            found += self._unlike_generator(data, pointer)
        elif self.init == "random" and self.noise_precision is None:
            detail = (
                "null is for init maximum_likelihood, which estimates it; give a number above 0"
            )
            found.append(Problem(f"{pointer}/noise_precision", detail))
        return found

    def _unlike_generator(self, data: DataSource, pointer: str) -> list[Problem]:
        if not isinstance(data, PpcaData):
            detail = f"generator is for data.source ppca; {data.source} has no generator"
            return [Problem(f"{pointer}/init", f"{detail}: use random or maximum_likelihood")]
        return [
            Problem(
                f"{pointer}/{name}",
                f"init generator takes the data's own {name}, {theirs}, not {ours}",
            )
            for name in ("latent_dim", "noise_precision")
            if (ours := getattr(self, name)) != (theirs := getattr(data, name))
        ]


Model = PpcaModel
