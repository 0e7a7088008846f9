"""Data of a spec: load from a source, hold out, binarize or standardize, and check."""

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, assert_never

import numpy as np
import torch
from torch import Tensor

from mptcore.data.duplicates import copied_rows
from mptcore.data.uploads import uploaded
from mptcore.data.vision import torchvision_datasets
from mptcore.protocol.records import RunError
from mptcore.runtime import inputs
from mptcore.runtime.rng import generator_for
from mptcore.specs.vectors import (
    DataSource,
    DigitsData,
    FashionMnistData,
    MeasuredData,
    MnistData,
    PpcaData,
    UploadData,
    columns_are,
    missing_values,
)

SUM_FACTOR = 1e6
"""Margin below values whose squares overflow, for sums over observations and dimensions."""
MAX_SQUARED = 1e140
"""Standard deviation up to which, and down to whose inverse, squares keep all digits."""


class Scaling(NamedTuple):
    """Shift and scale of standardized data, whose values are (x - center) / scale."""

    center: Tensor  # (D,), or (1,) for all dimensions alike, in float64
    scale: Tensor  # likewise


@dataclass(frozen=True)
class Dataset:
    x: Tensor  # (N, D): what is trained on and scored, NaN where a value is missing
    parameters: Mapping[str, Tensor] | None = None
    """Parameters of simulated data's generator, by name."""
    heldout: Tensor | None = None  # (H, D)
    columns: Sequence[str] | None = None
    """Names of the dimensions of a table."""
    heldout_rows: Tensor | None = None  # (H,)
    """Row numbers of the held-out observations among all, from 0."""
    scaling: Scaling | None = None
    """Shift and scale that were applied."""
    ids: Mapping[str, Sequence[str]] | None = None
    """Id columns of a table by name, with a value for each of all observations, held-out ones
    too, in the order of the source."""

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    @property
    def mean(self) -> Tensor:  # (D,)
        """Mean of the observed values of each dimension, in float64."""
        return mean_of(self.x.double())

    @property
    def constant(self) -> list[str]:
        """Names or indices of the columns whose observed values are all the same."""
        missing = self.x.isnan()
        value = self.x.gather(0, missing.byte().argmin(0, keepdim=True))  # an observed one, (1, D)
        constant = ((self.x == value) | missing).all(0).nonzero().flatten().tolist()
        names = self.columns or [*map(str, range(self.dim))]
        return [names[c] for c in constant]

    @property
    def scale(self) -> Tensor:  # (D,)
        """Standard deviation of the observed values of each dimension, in float64."""
        return scale_of(self.x.double())

    def held_out(self, count: int, seed: int) -> "Dataset":
        """Return the data with `count` randomly chosen observations held out."""
        if count == 0:
            return self
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))
        aside, kept = order[:count].sort().values, order[count:].sort().values
        return replace(self, x=self.x[kept], heldout=self.x[aside], heldout_rows=aside)


def mean_of(x: Tensor) -> Tensor:  # (N, D) to (D,)
    """Return the mean of the values of each column that are not NaN. Sums do not overflow."""
    mean = x.nanmean(0) if x.isnan().any() else x.mean(0)
    if mean.isfinite().all():
        return mean
    unit = _units(x)
    return (x / unit).nanmean(0) * unit


def scale_of(x: Tensor) -> Tensor:  # (N, D) to (D,)
    """Return the standard deviation of the values of each column that are not NaN. Squares neither
    overflow nor underflow."""
    scale = (x - mean_of(x)).square().nanmean(0).sqrt()
    if ((scale > 1 / MAX_SQUARED) & (scale < MAX_SQUARED)).all():
        return scale
    unit = _units(x)
    scaled = x / unit
    return (scaled - mean_of(scaled)).square().nanmean(0).sqrt() * unit


def _units(x: Tensor) -> Tensor:  # (N, D) to (D,)
    """Return the power of two below the largest magnitude of each column. Division by it is
    exact."""
    _, exponents = torch.frexp(x.nan_to_num().abs().amax(0))
    return torch.ldexp(torch.ones_like(x[0]), exponents - 1)


def refuse_extreme(data: Dataset, dtype: torch.dtype) -> None:
    """Raise RunError if a column has values whose squares overflow in the precision that is
    computed with, or if squares of their differences underflow or have fewer digits."""
    limits = torch.finfo(dtype)
    parts = [data.x] if data.heldout is None else [data.x, data.heldout]
    x = torch.cat(parts).double()
    largest = x.nan_to_num().abs().amax(0)
    spread = x.nan_to_num(-math.inf).amax(0) - x.nan_to_num(math.inf).amin(0)
    smallest = (limits.tiny / limits.eps) ** 0.5
    names, precision = data.columns or [*map(str, range(data.dim))], str(dtype).split(".")[-1]
    for columns, detail in (
        (largest > limits.max**0.5 / SUM_FACTOR, "whose squares overflow"),
        ((spread > 0) & (spread < smallest), "and squares of their differences underflow"),
    ):
        for column in columns.nonzero().flatten().tolist()[:1]:
            name = names[column] + ("" if data.columns else " (counted from 0)")
            values = f"has values up to {largest[column].item():.3g} in size"
            advice = "multiply the column by a constant, or set data.standardize=columns"
            raise RunError("invalid", f"column {name} {values}, {detail} in {precision}: {advice}")


def refuse_missing(data: Dataset, refusal: str | None) -> None:
    """Raise RunError if values are missing and there is a reason why they are refused, or if a
    column has no value at all."""
    parts = [data.x] if data.heldout is None else [data.x, data.heldout]
    if not any(part.sum().isnan() for part in parts):  # the sum is quick, and NaN if a value is
        return
    names = data.columns or [*map(str, range(data.dim))]

    def named(is_chosen: Tensor) -> list[str]:
        return [names[c] for c in is_chosen.nonzero().flatten().tolist()]

    missing = named(torch.stack([part.isnan().any(0) for part in parts]).any(0))
    if missing and refusal is not None:
        raise RunError("invalid", missing_values(missing, data.columns is not None, refusal))
    if empty := named(data.x.isnan().all(0)):
        which = columns_are(empty, data.columns is not None, "empty")
        raise RunError("invalid", f"{which}: no value is left that is not held out")


def copies_warning(data: Dataset) -> str | None:
    """Return a sentence about held-out observations that are exact copies of others, if any are."""
    if data.heldout is None:
        return None
    copies = len(copied_rows(data.heldout.double().numpy(), data.x.double().numpy()))
    if copies == 0:
        return None
    verb = "is an exact copy" if copies == 1 else "are exact copies"
    return (
        f"{copies} of {len(data.heldout)} held-out rows {verb} of rows that are not held out: a "
        "model that learns rows by heart scores them too well. If the data should have no "
        "duplicates, remove them"
    )


def load_arrays(
    spec: DataSource, seed: int, generator: torch.Generator, scaling: Scaling | None = None
) -> Dataset:
    """Load the data of a spec. Simulated data are drawn from the generator; held-out observations
    are chosen by the seed. Standardized data get the given scaling, if any, instead of their own.
    Raises RunError if the data cannot be loaded."""
    dataset = _load(spec, generator)
    if not isinstance(spec, MeasuredData):
        return dataset.held_out(spec.heldout_n, seed)
    if spec.binarize is not None:
        dataset = binarized(dataset, spec)
    dataset = dataset.held_out(spec.heldout_n, seed)
    if spec.standardize:
        scaling = scaling or scaling_of(dataset, spec.standardize == "columns")
        dataset = standardized(dataset, scaling)
    return dataset


def _load(spec: DataSource, generator: torch.Generator) -> Dataset:
    match spec:
        case PpcaData():
            return simulate_ppca(spec, generator)
        case DigitsData():
            return digits()
        case MnistData() | FashionMnistData():
            return images(spec, generator)
        case UploadData():
            upload = uploaded(spec)
            return Dataset(torch.from_numpy(upload.x), columns=upload.columns, ids=upload.ids)
        case _:
            assert_never(spec)


def simulate_ppca(spec: PpcaData, generator: torch.Generator) -> Dataset:
    """Draw x = Z Wᵀ + e, in the order W, Z, e.

    With shared noise these are the published data, to the bit: float32 draws, one e for each
    observation with standard deviation 1/noise_precision, added to all its dimensions. The
    paper's model has variance 1/noise_precision in each dimension; that is isotropic noise.
    """
    loadings = torch.randn(spec.dim, spec.latent_dim, generator=generator)
    latent = torch.randn(spec.n, spec.latent_dim, generator=generator)
    match spec.noise:
        case "shared":
            x = latent @ loadings.mT
            x = x + torch.randn(spec.n, 1, generator=generator) / spec.noise_precision
        case "isotropic":
            x = latent.double() @ loadings.double().mT
            noise = torch.randn(spec.n, spec.dim, generator=generator, dtype=torch.float64)
            x = x + noise / spec.noise_precision**0.5
    variance = torch.full((spec.dim,), 1 / spec.noise_precision, dtype=torch.float64)
    mean = torch.zeros(spec.dim, dtype=torch.float64)
    parameters = {"loadings": loadings.double(), "mean": mean, "noise_variance": variance}
    return Dataset(x.double(), parameters)


DIGITS_FILE = "datasets/data/digits.csv.gz"
"""Scikit-learn's copy of the UCI handwritten digits, which comes with the package."""


def digits() -> Dataset:
    """Return all 1797 images as rows of 64 pixels, 0 to 16. The file is read directly, because
    importing scikit-learn takes nearly a second."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations is not None
    table = np.loadtxt(Path(package.submodule_search_locations[0], DIGITS_FILE), delimiter=",")
    return Dataset(torch.from_numpy(table[:, :-1].copy()))  # the last column is the digit


def images(spec: MnistData | FashionMnistData, generator: torch.Generator) -> Dataset:
    """Return the training images as rows of 784 pixels, 0 to 1, in float32. They are multiples of
    1/255; computations with them use float64."""
    pixels = _pixels(spec)
    if spec.n < len(pixels):
        pixels = pixels[torch.randperm(len(pixels), generator=generator)[: spec.n]]
    return Dataset(pixels.flatten(1).to(torch.float32) / 255)


def _pixels(spec: MnistData | FashionMnistData) -> torch.Tensor:  # (60000, 28, 28), uint8
    folder = os.environ.get("MPT_DATA_DIR")
    allowed = os.environ.get("MPT_ALLOW_DOWNLOAD") == "1"
    if not folder:
        raise RunError("invalid", f"{spec.source} is read from MPT_DATA_DIR, which is not set")
    source = getattr(torchvision_datasets(), spec.class_name)
    try:
        pixels: torch.Tensor = source(folder, train=True, download=allowed).data
    except RuntimeError as error:
        if "Dataset not found" not in str(error):
            raise
        advice = "put it there, or set MPT_ALLOW_DOWNLOAD=1"
        raise RunError("invalid", f"MPT_DATA_DIR has no {spec.source}: {advice}") from error
    place = f"MPT_DATA_DIR/{spec.class_name}, the pixels of its training images"
    inputs.note_used(place, hashlib.sha256(pixels.numpy().tobytes()).hexdigest())
    return pixels


def binarized(data: Dataset, spec: MeasuredData) -> Dataset:
    """Binarize data as the spec says. Missing values stay missing. Raises RunError if values are
    outside of the source's range."""
    missing = data.x.isnan()
    if not missing.any():
        return replace(data, x=_binary(data.x, spec))
    observed = _binary(data.x[~missing], spec)
    return replace(data, x=data.x.masked_scatter(~missing, observed))


def standardized(data: Dataset, scaling: Scaling) -> Dataset:
    """Shift and scale data, held-out observations too. Raises RunError for another number of
    dimensions."""
    dims = scaling.scale.numel()
    if dims not in (1, data.dim):
        detail = f"the model was fitted to standardized data of {dims} dimensions, not {data.dim}"
        raise RunError("invalid", detail)
    half = Scaling(scaling.center / 2, scaling.scale / 2)  # differences would overflow
    x, heldout = (
        None if part is None else ((part.double() / 2 - half.center) / half.scale).to(part)
        for part in (data.x, data.heldout)
    )
    assert x is not None
    return replace(data, x=x, heldout=heldout, scaling=scaling)


def scaling_of(data: Dataset, by_column: bool) -> Scaling:
    """Return the mean and standard deviation of the observations that are not held out, of each
    column or of all values. Raises RunError if the values to scale are all the same."""
    if by_column:
        if constant := data.constant:  # a rounded scale of 0.1, 0.1, 0.1 is not 0
            which = columns_are(constant, data.columns is not None, "constant")
            raise RunError("invalid", f"{which}: data.standardize cannot scale them")
        return Scaling(data.mean, data.scale)
    observed = data.x[~data.x.isnan()].double()
    center, scale = observed.mean()[None], observed.std(correction=0)[None]
    if not 1 / MAX_SQUARED < scale < MAX_SQUARED:
        center, scale = mean_of(observed[:, None]), scale_of(observed[:, None])
    if scale == 0:
        raise RunError("invalid", "data.standardize needs values that are not all the same")
    return Scaling(center, scale)


def _binary(x: Tensor, spec: MeasuredData) -> Tensor:
    lowest, highest = spec.value_range
    if x.min() < lowest or x.max() > highest:
        values = f"from {x.min().item():.4g} to {x.max().item():.4g}"
        detail = f"data.binarize needs values from {lowest:g} to {highest:g}"
        raise RunError("invalid", f"{detail}; these are {values}")
    share = (x - lowest) / (highest - lowest)
    if spec.binarize == "threshold":
        return (share > 0.5).to(x)
    generator = generator_for(spec.seed, "binarize")
    return (torch.rand(x.shape, generator=generator) < share).to(x)
