"""Load the data of a spec as one tensor."""

from typing import assert_never

import torch

from mptcore.data.dataset import Dataset, Scaling
from mptcore.data.digits import digits
from mptcore.data.images import images
from mptcore.data.prepare import binarized, scaling_of, standardized
from mptcore.data.simulated import simulate_ppca
from mptcore.data.uploads import uploaded
from mptcore.specs.vectors import (
    DataSource,
    DigitsData,
    FashionMnistData,
    MeasuredData,
    MnistData,
    PpcaData,
    UploadData,
)

__all__ = ["Dataset", "load_arrays"]


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
        own = scaling or scaling_of(dataset, spec.standardize == "columns")
        dataset = standardized(dataset, own)
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
