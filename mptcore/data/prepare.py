"""Binarize or standardize data."""

from dataclasses import replace

import torch
from torch import Tensor

from mptcore.data.dataset import MAX_SQUARED, Dataset, Scaling, mean_of, scale_of
from mptcore.protocol.records import RunError
from mptcore.runtime.rng import generator_for
from mptcore.specs import MeasuredData
from mptcore.specs.vectors import columns_are


def binarized(data: Dataset, spec: MeasuredData) -> Dataset:
    """Binarize data as the spec says. Missing values stay missing. Raises RunError if values are
    outside of the source's range."""
    missing = data.x.isnan()
    if not missing.any():
        return replace(data, x=_binary(data.x, spec))
    observed = _binary(data.x[~missing], spec)
    return replace(data, x=data.x.masked_scatter(~missing, observed))


def standardized(data: Dataset, scaling: Scaling) -> Dataset:
    """Shift and scale data, held-out observations too. Raises RunError for another number of
    dimensions."""
    known = scaling.scale.numel()
    if known not in (1, data.dim):
        detail = f"the model was fitted to standardized data of {known} dimensions, not {data.dim}"
        raise RunError("invalid", detail)
    half = Scaling(scaling.center / 2, scaling.scale / 2)  # differences would overflow
    x, heldout = (
        None if part is None else ((part.double() / 2 - half.center) / half.scale).to(part)
        for part in (data.x, data.heldout)
    )
    assert x is not None
    return replace(data, x=x, heldout=heldout, scaling=scaling)


def scaling_of(data: Dataset, by_column: bool) -> Scaling:
    """Return the mean and standard deviation of the observations that are not held out, of each
    column or of all values. Raises RunError if the values to scale are all the same."""
    if by_column:
        if constant := data.constant:  # a rounded scale of 0.1, 0.1, 0.1 is not 0
            which = columns_are(constant, data.columns is not None, "constant")
            raise RunError("invalid", f"{which}: data.standardize cannot scale them")
        return Scaling(data.mean, data.scale)
    observed = data.x[~data.x.isnan()].double()
    center, scale = observed.mean()[None], observed.std(correction=0)[None]
    if not 1 / MAX_SQUARED < scale < MAX_SQUARED:
        center, scale = mean_of(observed[:, None]), scale_of(observed[:, None])
    if scale == 0:
        raise RunError("invalid", "data.standardize needs values that are not all the same")
    return Scaling(center, scale)


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
