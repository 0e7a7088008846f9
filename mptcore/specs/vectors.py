"""Sources of vectors, N observations × D dimensions, and options for reading their tables."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mptcore.specs.base import Problem, Seed, Source, Spec

Precision = Annotated[float, Field(gt=0, le=1e12)]
"""Inverse variance."""
Dimensions = Annotated[int, Field(ge=2, le=1_000_000)]
Observations = Annotated[int, Field(ge=1, le=100_000_000)]


class Data(Source):
    """Base class of the sources."""

    source: str
    """Source of the data."""
    n: int
    """Number of observations N."""
    heldout: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fraction of the observations that is excluded from training and scores and gives
    `lml_heldout` and `mpt_heldout`. They are chosen at random by the data's seed."""

    def problems(self) -> list[Problem]:
        """Return the problems of this source by itself."""
        if self.heldout is not None and self.n < 2:
            return [Problem("/data/heldout", "holding out needs two observations or more")]
        return []

    def binary_problems(
        self, model: str, pointer: str = "/data/source", advice: str = "use another source"
    ) -> list[Problem]:
        """Return the reasons why the values are not 0 and 1, which a model needs. `advice` changes
        the field at `pointer` if the source has no such values."""
        detail = f"{model} needs data of 0 and 1; {self.source} has others: {advice}"
        return [Problem(pointer, detail)]

    @property
    def heldout_n(self) -> int:
        """Number of held-out observations: at least one, and not all."""
        if self.heldout is None:
            return 0
        return min(max(1, math.floor(self.heldout * self.n)), self.n - 1)

    @property
    def kept_n(self) -> int:
        """Number of observations for training and scores."""
        return self.n - self.heldout_n


class PpcaData(Data):
    """Data drawn from a PPCA generator (the paper, Sec. 4)."""

    source: Literal["ppca"]
    """Source of the data."""
    n: Observations
    """Number of observations N."""
    dim: Dimensions
    """Number of dimensions D of an observation."""
    latent_dim: Annotated[int, Field(ge=1, le=100_000)]
    """Number of latent dimensions K of the generator."""
    noise_precision: Precision
    """Parameter of the generator's noise, see `noise`."""
    noise: Literal["isotropic", "shared"] = "isotropic"
    """`isotropic` draws noise for each dimension, with variance 1/noise_precision. `shared` is the
    published generator: one value for each observation, with standard deviation
    1/noise_precision."""
    seed: Seed | Literal["run"] = 0
    """Seed of the generator. `run`: each run's own seed; the masks continue its stream."""

    def problems(self) -> list[Problem]:
        problems = []
        if self.latent_dim >= self.dim:
            detail = f"latent_dim is less than dim, {self.dim}, not {self.latent_dim}"
            problems.append(Problem("/data/latent_dim", detail))
        return problems + super().problems()


class MeasuredData(Data):
    """Base class of data that were not simulated."""

    value_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The lowest and the highest value that the source can have."""

    binarize: Literal["threshold", "stochastic"] | None = None
    """Conversion of values to 0 and 1: `threshold` gives 1 above half of the source's largest
    value; `stochastic` gives 1 with probability value / largest value, drawn once by `seed`."""
    standardize: bool | Literal["columns"] = False
    """True shifts and scales all values alike, to mean 0 and variance 1 over all that are not held
    out. `columns` does so for each column, so that columns in different units count alike. With
    `init: experiment` the shift and scale are those of that experiment's data."""
    seed: Seed = 0
    """Seed of the held-out set, of stochastic values, and of a subset of images."""

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.binarize and self.standardize:
            detail = "binarized values are 0 and 1: leave out binarize or standardize"
            problems.append(Problem("/data/standardize", detail))
        return problems

    def binary_problems(
        self, model: str, pointer: str = "/data/source", advice: str = "use another source"
    ) -> list[Problem]:
        needed = f"{model} needs data of 0 and 1"
        if self.binarize is None and not self._may_be_binary:
            return [Problem("/data/binarize", f"threshold or stochastic: {needed}")]
        if self.standardize:
            return [Problem("/data/standardize", needed)]
        return []

    @property
    def _may_be_binary(self) -> bool:
        """True if the unchanged values may be 0 and 1."""
        return False


class DigitsData(MeasuredData):
    """Scikit-learn's handwritten digits: 1797 images of 8 × 8 pixels, values 0 to 16."""

    value_range: ClassVar[tuple[float, float]] = (0.0, 16.0)
    constant: ClassVar[tuple[str, ...]] = ("0", "32", "39")
    """Pixels that are 0 in every image."""

    source: Literal["digits"]
    """Source of the data."""
    n: Literal[1797] = 1797
    """Number of observations N."""

    @property
    def dim(self) -> int:
        return 64


class ImageData(MeasuredData):
    """The training images of a torchvision data set: 28 × 28 pixels, values 0 to 1."""

    is_remote: ClassVar[bool] = True

    n: Annotated[int, Field(ge=1, le=60_000)] = 60_000
    """Number of images N: all of them in their order, or fewer, chosen at random by `seed`."""

    @property
    def dim(self) -> int:
        return 784

    @property
    def class_name(self) -> str:
        """Name of the class in torchvision.datasets, and of its folder."""
        return IMAGES[self.source]

    def local(self, folder: Path) -> Path:
        return folder / self.class_name

    def is_local(self, folder: Path) -> bool:
        return _has_images(folder, self.class_name)

    def local_names(self, folder: Path) -> list[str]:
        return [source for source, name in IMAGES.items() if _has_images(folder, name)]


IMAGES = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}


def _has_images(folder: Path, class_name: str) -> bool:
    file = folder / class_name / "raw/train-images-idx3-ubyte"
    return file.is_file() or file.with_name(f"{file.name}.gz").is_file()


class MnistData(ImageData):
    """MNIST, from the folder MPT_DATA_DIR."""

    source: Literal["mnist"]
    """Source of the data."""


class FashionMnistData(ImageData):
    """Fashion-MNIST, from the folder MPT_DATA_DIR."""

    source: Literal["fashion_mnist"]
    """Source of the data."""


class UploadData(MeasuredData):
    """An uploaded data set. A file whose shape is not `n` × `dim` is refused; the service fills in
    sizes that a submission omits."""

    source: Literal["upload"]
    """Source of the data."""
    dataset: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")]
    """Id of the upload. A submission may give its file name, which the id replaces."""
    n: Observations
    """Number of observations N in the file."""
    dim: Dimensions
    """Number of dimensions D in the file, or of `columns`."""
    array: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Name of an array in an .npz file. null: the only array of the file."""
    columns: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=200)], ...],
            Field(min_length=2, max_length=100_000),
        ]
        | None
    ) = None
    """Names of the columns to use of a .csv, .tsv or .parquet file, in this order. null: all."""

    @property
    def _may_be_binary(self) -> bool:
        return True

    def problems(self) -> list[Problem]:
        problems = []
        if self.array is not None and self.columns is not None:
            detail = "columns are for .csv, .tsv and .parquet files, array for .npz: give one"
            problems.append(Problem("/data/columns", detail))
        if self.columns is not None and len(self.columns) != self.dim:
            detail = f"dim, {self.dim}, columns, not {len(self.columns)}"
            problems.append(Problem("/data/columns", detail))
        twice = [name for name, count in Counter(self.columns or ()).items() if count > 1]
        if twice:
            problems.append(Problem("/data/columns", f"each column once; {twice[0]} is repeated"))
        return problems + super().problems()


DataSource = Annotated[
    PpcaData | DigitsData | MnistData | FashionMnistData | UploadData,
    Field(discriminator="source"),
]


ColumnName = Annotated[str, Field(max_length=200)]


class TableOptions(Spec):
    """Options for reading a .csv, .tsv or .parquet file."""

    header: bool | None = None
    """True if the first line of a text file has the names of the columns. null: decided by its
    cells."""
    sep: Literal[",", ";", "tab", "|"] | None = None
    """Separator of the cells in a text file. null: a comma in .csv, a tab in .tsv."""
    decimal: Literal[".", ","] = "."
    """Decimal separator of the numbers in a text file."""
    thousands: Literal[",", ".", " ", "'", "_"] | None = None
    """Separator of groups of three digits in a text file."""
    index: Annotated[tuple[ColumnName, ...], Field(max_length=100)] = ()
    """Columns that identify the rows. They are no measurements: they are kept as ids."""
    drop_non_numeric: bool = False
    """True leaves out all columns that are not numbers."""

    def separator(self, format: str) -> str:
        """Return the separator of the cells in a text file."""
        return {"tab": "\t"}.get(self.sep or "", self.sep or SEPARATORS[format])

    def digest(self, format: str) -> str:
        """Return a digest of the options, empty for formats that have none. It differs from that of
        the same options in versions that decide in another way what is not given."""
        if format not in TABLE_FORMATS:
            return ""
        text = f"{HEADER_RULES} {self.model_dump_json(exclude_defaults=True)}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def is_for_text(self) -> bool:
        """Return whether an option is set that only text files have."""
        of_text = ("header", "sep", "decimal", "thousands")
        return any(getattr(self, name) != type(self).model_fields[name].default for name in of_text)

    def problems(self, format: str) -> list[Problem]:
        """Return the contradictions between the options, and with the format of a file."""
        problems = []
        if self != DEFAULT_TABLE_OPTIONS and format not in TABLE_FORMATS:
            problems.append(Problem("", f"a .{format} file has no columns: {ONLY_TABLES}"))
        elif self.is_for_text and format == "parquet":
            problems.append(Problem("", f"a .parquet file has its own types: {ONLY_TEXT}"))
        if self.thousands == self.decimal:
            problems.append(Problem("/thousands", f"not the same as decimal, {self.decimal!r}"))
        return problems


HEADER_RULES = 1
"""Version of the rules that decide what the options leave open: headers, columns without names."""
OPTIONS_FILE = "reading.json"
"""Name of the file beside a stored table with the options that it is read with."""
SEPARATORS = {"csv": ",", "tsv": "\t"}
"""Separators of the cells in text files."""
TABLE_FORMATS = (*SEPARATORS, "parquet")
DEFAULT_TABLE_OPTIONS = TableOptions()
ONLY_TABLES = "index, drop_non_numeric, header, sep, decimal and thousands are for tables"
ONLY_TEXT = "header, sep, decimal and thousands are for .csv and .tsv files"


MAX_NAMED = 10


def columns_are(columns: Sequence[str], are_names: bool, adjective: str) -> str:
    """Return `column a is` or `columns 0, 2 are` with the adjective, and how columns are counted if
    they have no names."""
    listed = ", ".join(columns[:MAX_NAMED]) + (", …" if len(columns) > MAX_NAMED else "")
    which = f"columns {listed} are" if len(columns) > 1 else f"column {listed} is"
    return f"{which} {adjective}" + ("" if are_names else " (counted from 0)")


def missing_values(columns: Sequence[str], are_names: bool, refusal: str) -> str:
    """Return why data with missing values in these columns are refused."""
    which = columns_are(columns, are_names, "incomplete")
    return f"{which}, with values that are empty or NaN: {refusal}"
