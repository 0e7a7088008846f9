"""Scikit-learn's copy of the UCI handwritten digits, which comes with the package."""

import torch
from sklearn.datasets import load_digits

from mptcore.data.dataset import Dataset


def digits() -> Dataset:
    """All 1797 images as rows of 64 pixels, 0 to 16."""
    return Dataset(torch.from_numpy(load_digits().data).double())
