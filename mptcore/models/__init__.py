"""The families: from a spec and its data to a model that can be scored."""

import torch

from mptcore.data import Dataset
from mptcore.models.base import MaskedModel, TractableModel
from mptcore.models.linear_gaussian import LinearGaussianModel
from mptcore.models.ppca import ppca
from mptcore.moments import moment_of
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
    moment = moment_of(data.x, density.mean, density.noise_variance.min().item())
    return LinearGaussianModel(density.to(device, dtype), moment)
