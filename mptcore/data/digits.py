"""Scikit-learn's copy of the UCI handwritten digits, which comes with the package."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from mptcore.data.dataset import Dataset

FILE = "datasets/data/digits.csv.gz"


def digits() -> Dataset:
    """Return all 1797 images as rows of 64 pixels, 0 to 16. The file is read directly, because
    importing scikit-learn takes nearly a second."""
    found = find_spec("sklearn")
    assert found is not None
    assert found.submodule_search_locations is not None
    table = np.loadtxt(Path(found.submodule_search_locations[0], FILE), delimiter=",")
    return Dataset(torch.from_numpy(table[:, :-1].copy()))  # the last column is the digit
