"""Load the data of a spec as one tensor."""

from typing import assert_never

import torch

from mptcore.data.dataset import Dataset
from mptcore.data.digits import digits
from mptcore.data.images import images
from mptcore.data.prepare import prepared
from mptcore.data.simulated import simulate_ppca
from mptcore.data.tables import uploaded
from mptcore.specs.data.arrays import (
    DataSource,
    DigitsData,
    FashionMnistData,
    MeasuredData,
    MnistData,
    PpcaData,
    UploadData,
)

__all__ = ["Dataset", "load_arrays"]


def load_arrays(spec: DataSource, seed: int, generator: torch.Generator) -> Dataset:
    """Load the data of a spec. Simulated data are drawn from the generator; held-out observations
    are chosen by the seed. Raises RunError if the data cannot be loaded."""
    dataset = _load(spec, generator)
    if isinstance(spec, MeasuredData):
        dataset = prepared(dataset, spec)
    return dataset.held_out(spec.heldout_n, seed)


def _load(spec: DataSource, generator: torch.Generator) -> Dataset:
    match spec:
        case PpcaData():
            return simulate_ppca(spec, generator)
        case DigitsData():
            return digits()
        case MnistData() | FashionMnistData():
            return images(spec, generator)
        case UploadData():
            found = uploaded(spec)
            return Dataset(torch.from_numpy(found.x), columns=found.columns)
        case _:
            assert_never(spec)
