"""The log marginal likelihood from logarithms of importance weights."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.estimation.model import Evidence


class WeightSummary(NamedTuple):
    """What importance weights say of each observation, (N,) each."""

    log_mean: Tensor
    variance: Tensor
    """Of `log_mean`, to the first order."""
    ess: Tensor
    """The effective sample size."""


def summary_of(log_weights: Tensor) -> WeightSummary:
    """From logarithms of unbiased weights (samples, N)."""
    log_weights = log_weights.double()
    samples = len(log_weights)
    shares = log_weights.softmax(0).square().sum(0)  # 1/ESS
    variance = (shares - 1 / samples).clamp(min=0) * samples / (samples - 1)
    return WeightSummary(log_weights.logsumexp(0) - math.log(samples), variance, 1 / shares)


def weight_evidence(parts: Sequence[WeightSummary]) -> Evidence:
    """The mean over observations of the logarithm of the mean weight, below the truth in
    expectation, with its Monte Carlo standard error (of the first order: it does not tell how far
    below) and the mean effective sample size."""
    value, variance, ess = (torch.cat(columns) for columns in zip(*parts, strict=True))
    error = math.sqrt(variance.sum().item()) / len(value)
    return Evidence(value.mean().item(), error, None, {"ess": ess.mean().item()})
