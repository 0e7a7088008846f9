"""What the model is scored on."""

from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import Problem, Seed, Spec

Precision = Annotated[float, Field(gt=0, le=1e12)]
"""An inverse variance."""


class PpcaData(Spec):
    """Data drawn from a PPCA generator (the paper, Sec. 4).

    `noise`: isotropic draws it per dimension with variance 1/noise_precision; shared is the
    published generator: one value per observation, of standard deviation 1/noise_precision.
    `seed` is a number or "run": each run's own seed, whose stream then goes on with the masks.
    """

    source: Literal["ppca"]
    n: Annotated[int, Field(ge=1, le=100_000_000)]
    dim: Annotated[int, Field(ge=2, le=1_000_000)]
    latent_dim: Annotated[int, Field(ge=1, le=100_000)]
    noise_precision: Precision
    noise: Literal["isotropic", "shared"] = "isotropic"
    seed: Seed | Literal["run"] = 0

    def problems(self) -> list[Problem]:
        if self.latent_dim < self.dim:
            return []
        detail = f"latent_dim is less than dim, {self.dim}, not {self.latent_dim}"
        return [Problem("/data/latent_dim", detail)]


class DigitsData(Spec):
    """Scikit-learn's handwritten digits: 1797 images of 8 × 8 pixels, values 0 to 16."""

    source: Literal["digits"]

    @property
    def n(self) -> int:
        return 1797

    @property
    def dim(self) -> int:
        return 64

    @property
    def seed(self) -> None:
        """Nothing is drawn."""
        return None

    def problems(self) -> list[Problem]:
        return []


DataSource = Annotated[PpcaData | DigitsData, Field(discriminator="source")]
