"""The families: from a spec and its data to a model that can be scored."""

import torch

from mptcore.data import Dataset
from mptcore.models.base import MaskedModel, TractableModel
from mptcore.models.linear_gaussian import LinearGaussianModel, second_moment
from mptcore.models.ppca import ppca
from mptcore.specs import Model

__all__ = ["MaskedModel", "TractableModel", "build"]


def build(
    spec: Model,
    data: Dataset,
    generator: torch.Generator,
    device: torch.device,
    dtype: torch.dtype,
) -> TractableModel:
    """The model of a spec on its data."""
    density = ppca(spec, data, generator)
    moment = second_moment(data.x, density.mean)
    return LinearGaussianModel(density.to(device, dtype), moment.to(device))
