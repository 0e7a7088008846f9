"""Data made binary, or shifted and scaled."""

from dataclasses import replace

import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.protocol.records import RunError
from mptcore.runtime.rng import stream
from mptcore.specs import DigitsData, MeasuredData


def prepared(data: Dataset, spec: MeasuredData) -> Dataset:
    """As the spec asks. Raises RunError where the values are not what that needs."""
    if spec.binarize is not None:
        return replace(data, x=_binary(data.x, spec))
    if spec.standardize:
        return replace(data, x=_standardized(data.x))
    return data


def _binary(x: Tensor, spec: MeasuredData) -> Tensor:
    largest = 16.0 if isinstance(spec, DigitsData) else 1.0
    if x.min() < 0 or x.max() > largest:
        found = f"from {x.min().item():.4g} to {x.max().item():.4g}"
        raise RunError(
            "invalid", f"data.binarize needs values from 0 to {largest:g}; these are {found}"
        )
    share = x / largest
    if spec.binarize == "threshold":
        return (share > 0.5).to(x)
    draws = stream(spec.seed, "binarize")
    return (torch.rand(x.shape, generator=draws) < share).to(x)


def _standardized(x: Tensor) -> Tensor:
    scale = x.double().std(correction=0).item()
    if scale == 0:
        raise RunError("invalid", "data.standardize needs values that are not all the same")
    return ((x.double() - x.double().mean()) / scale).to(x)
