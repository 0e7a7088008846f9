"""The data a spec names, as one tensor."""

import torch

from mptcore.data.dataset import Dataset
from mptcore.data.digits import digits
from mptcore.data.simulated import simulate_ppca
from mptcore.specs import DataSource, DigitsData, PpcaData

__all__ = ["Dataset", "load"]


def load(spec: DataSource, generator: torch.Generator) -> Dataset:
    """The data of a spec; what is simulated is drawn from the generator."""
    match spec:
        case PpcaData():
            return simulate_ppca(spec, generator)
        case DigitsData():
            return digits()
