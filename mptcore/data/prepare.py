"""Binarize or standardize data."""

from dataclasses import replace

import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.protocol.records import RunError
from mptcore.runtime.rng import generator_for
from mptcore.specs import MeasuredData
from mptcore.specs.data.columns import columns_are


def prepared(data: Dataset, spec: MeasuredData) -> Dataset:
    """Binarize or standardize data as the spec says. Missing values stay missing. Raises RunError
    if the values do not allow it."""
    if spec.standardize == "columns":
        return replace(data, x=_standardized_columns(data))
    missing = data.x.isnan()
    if missing.any():
        observed = prepared(replace(data, x=data.x[~missing]), spec).x
        return replace(data, x=data.x.masked_scatter(~missing, observed))
    if spec.binarize is not None:
        return replace(data, x=_binary(data.x, spec))
    if spec.standardize:
        return replace(data, x=_standardized(data.x))
    return data


def _binary(x: Tensor, spec: MeasuredData) -> Tensor:
    least, largest = spec.value_range
    if x.min() < least or x.max() > largest:
        values = f"from {x.min().item():.4g} to {x.max().item():.4g}"
        detail = f"data.binarize needs values from {least:g} to {largest:g}"
        raise RunError("invalid", f"{detail}; these are {values}")
    share = (x - least) / (largest - least)
    if spec.binarize == "threshold":
        return (share > 0.5).to(x)
    generator = generator_for(spec.seed, "binarize")
    return (torch.rand(x.shape, generator=generator) < share).to(x)


def _standardized(x: Tensor) -> Tensor:
    scale = x.double().std(correction=0).item()
    if scale == 0:
        raise RunError("invalid", "data.standardize needs values that are not all the same")
    return ((x.double() - x.double().mean()) / scale).to(x)


def _standardized_columns(data: Dataset) -> Tensor:
    if constant := data.constant:  # a rounded scale of 0.1, 0.1, 0.1 is not 0
        which = columns_are(constant, data.columns is not None, "constant")
        raise RunError("invalid", f"{which}: data.standardize cannot scale them")
    return ((data.x.double() - data.mean) / data.scale).to(data.x)
