"""Scikit-learn's copy of the UCI handwritten digits, which comes with the package."""

import torch

from mptcore.data.dataset import Dataset


def digits() -> Dataset:
    """All 1797 images as rows of 64 pixels, 0 to 16."""
    from sklearn.datasets import load_digits  # as long to load as torch, so only where it is used

    return Dataset(torch.from_numpy(load_digits().data).double())
