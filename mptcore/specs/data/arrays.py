"""What the model is scored on."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mptcore.specs.base import Problem, Seed, Spec

Precision = Annotated[float, Field(gt=0, le=1e12)]
"""An inverse variance."""
Dimensions = Annotated[int, Field(ge=2, le=1_000_000)]
Observations = Annotated[int, Field(ge=1, le=100_000_000)]


class Data(Spec):
    """`heldout`: the fraction of the observations, chosen at random by the data's seed, that is
    kept out of training and scores and gives `lml_heldout`."""

    source: str
    n: int
    heldout: Annotated[float, Field(gt=0, lt=1)] | None = None

    def problems(self) -> list[Problem]:
        """What is wrong with this source on its own."""
        if self.heldout is not None and self.n < 2:
            return [Problem("/data/heldout", "holding out needs two observations or more")]
        return []

    def binary_problems(self) -> list[Problem]:
        """What keeps the values from being 0 and 1."""
        detail = f"bernoulli is for data of 0 and 1; {self.source} has others: use gaussian"
        return [Problem("/model/likelihood/distribution", detail)]

    @property
    def heldout_n(self) -> int:
        """How many observations are held out: at least one, and not all."""
        if self.heldout is None:
            return 0
        return min(max(1, math.floor(self.heldout * self.n)), self.n - 1)

    @property
    def kept_n(self) -> int:
        """How many observations are left to train on and to score."""
        return self.n - self.heldout_n


class PpcaData(Data):
    """Data drawn from a PPCA generator (the paper, Sec. 4).

    `noise`: isotropic draws it per dimension with variance 1/noise_precision; shared is the
    published generator: one value per observation, of standard deviation 1/noise_precision.
    `seed` is a number or "run": each run's own seed, whose stream then goes on with the masks.
    """

    source: Literal["ppca"]
    n: Observations
    dim: Dimensions
    latent_dim: Annotated[int, Field(ge=1, le=100_000)]
    noise_precision: Precision
    noise: Literal["isotropic", "shared"] = "isotropic"
    seed: Seed | Literal["run"] = 0

    def problems(self) -> list[Problem]:
        problems = []
        if self.latent_dim >= self.dim:
            detail = f"latent_dim is less than dim, {self.dim}, not {self.latent_dim}"
            problems.append(Problem("/data/latent_dim", detail))
        return problems + super().problems()


class MeasuredData(Data):
    """Data that were not simulated. `binarize` makes 0 and 1 of values from 0 to the largest that
    the source can have: threshold, 1 above the middle; stochastic, 1 with the value's share of the
    largest as its probability, drawn once by `seed`. `standardize` shifts and scales all values
    alike, to mean 0 and variance 1 over all of them."""

    value_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The least and the largest value that the source can have."""

    binarize: Literal["threshold", "stochastic"] | None = None
    standardize: bool = False
    seed: Seed = 0

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.binarize and self.standardize:
            detail = "what is binarized is 0 and 1: leave one of the two out"
            problems.append(Problem("/data/standardize", detail))
        return problems

    def binary_problems(self) -> list[Problem]:
        needed = "the likelihood bernoulli needs data of 0 and 1"
        if self.binarize is None and not self._may_be_binary:
            return [Problem("/data/binarize", f"threshold or stochastic: {needed}")]
        if self.standardize:
            return [Problem("/data/standardize", needed)]
        return []

    @property
    def _may_be_binary(self) -> bool:
        """Whether the values as they come may be 0 and 1."""
        return False


class DigitsData(MeasuredData):
    """Scikit-learn's handwritten digits: 1797 images of 8 × 8 pixels, values 0 to 16."""

    value_range: ClassVar[tuple[float, float]] = (0.0, 16.0)

    source: Literal["digits"]
    n: Literal[1797] = 1797

    @property
    def dim(self) -> int:
        return 64


class ImageData(MeasuredData):
    """The training images of a torchvision set, 28 × 28 pixels, values 0 to 1: all 60,000 in their
    order, or `n` of them chosen at random by `seed`."""

    n: Annotated[int, Field(ge=1, le=60_000)] = 60_000

    @property
    def dim(self) -> int:
        return 784


class MnistData(ImageData):
    """MNIST, from the folder MPT_DATA_DIR."""

    source: Literal["mnist"]


class FashionMnistData(ImageData):
    """Fashion-MNIST, from the folder MPT_DATA_DIR."""

    source: Literal["fashion_mnist"]


class UploadData(MeasuredData):
    """A data set that was uploaded, by its id. `n` and `dim` say what is expected of it: a file of
    another shape is refused, and the service fills in what a submission leaves out. `array` names
    one array of an .npz file; `columns` picks columns by name (.csv, .parquet) in the order
    given."""

    source: Literal["upload"]
    dataset: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")]
    n: Observations
    dim: Dimensions
    array: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    columns: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=200)], ...],
            Field(min_length=2, max_length=100_000, strict=False),
        ]
        | None
    ) = None

    @property
    def _may_be_binary(self) -> bool:
        return True

    def problems(self) -> list[Problem]:
        problems = []
        if self.array is not None and self.columns is not None:
            detail = "columns are for .csv and .parquet files, array for .npz: give one"
            problems.append(Problem("/data/columns", detail))
        if self.columns is not None and len(self.columns) != self.dim:
            detail = f"dim, {self.dim}, columns, not {len(self.columns)}"
            problems.append(Problem("/data/columns", detail))
        return problems + super().problems()


DataSource = Annotated[
    PpcaData | DigitsData | MnistData | FashionMnistData | UploadData,
    Field(discriminator="source"),
]
