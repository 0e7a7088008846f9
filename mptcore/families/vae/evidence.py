"""Estimates of the log marginal likelihood: by grids, and by importance weights."""

import math
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.estimation.model import Evidence
from mptcore.families.vae.grid import nodes_of
from mptcore.families.vae.grid_vae import GridVae, mean_log_marginal
from mptcore.families.vae.sampled_vae import DeepVae
from mptcore.specs.families.vae.models import AnyGrid

FINAL_WITHIN = 0.05
"""Nats by which doubling the nodes may move a result that is called final."""


class Weights(NamedTuple):
    """What importance weights say of each observation, (N,) each."""

    log_mean: Tensor
    variance: Tensor
    """Of `log_mean`, to the first order."""
    ess: Tensor


def by_grid(model: GridVae, spec: AnyGrid, x: Tensor, latent_dim: int) -> Evidence:
    """The LML over the grid of a spec, which the model has; not final where a grid of twice the
    nodes, and wider, says something else."""
    value = mean_log_marginal(model, x)
    nodes = nodes_of(spec.doubled(), latent_dim)
    finer = GridVae(model.decoder, None, model.outputs, nodes).to(x)
    shift = mean_log_marginal(finer, x) - value
    reason = None
    if not abs(shift) <= FINAL_WITHIN:
        reason = (
            f"not final: twice the {spec.nodes} nodes move it by {shift:.3g} nats, more than "
            f"{FINAL_WITHIN}; raise evaluate.lml.nodes"
        )
    return Evidence(value, 0.0, reason, {"quadrature_shift": shift})


def by_weights(parts: Sequence[Weights]) -> Evidence:
    """The mean over observations of the logarithm of the mean weight, below the truth in
    expectation, with its Monte Carlo standard error (of the first order: it does not tell how far
    below) and the mean effective sample size."""
    value, variance, ess = (torch.cat(found) for found in zip(*parts, strict=True))
    error = math.sqrt(variance.sum().item()) / len(value)
    return Evidence(value.mean().item(), error, None, {"ess": ess.mean().item()})


def weighed(logs: Tensor) -> Weights:
    """From logarithms of unbiased weights (samples, N)."""
    logs = logs.double()
    samples = len(logs)
    shares = logs.softmax(0).square().sum(0)  # 1/ESS
    variance = (shares - 1 / samples).clamp(min=0) * samples / (samples - 1)
    return Weights(logs.logsumexp(0) - math.log(samples), variance, 1 / shares)


def by_iwae(
    model: DeepVae, samples: int, x: Tensor, generator: torch.Generator
) -> Generator[None, None, Evidence]:
    """The importance weighted bound of Burda et al. (2016, Eq. 8); it rests between parts of the
    data."""
    parts = []
    for part in model.parts(x, samples):
        parts.append(weighed(model.log_weights(part, samples, generator)))
        yield
    return by_weights(parts)


class Resting:
    """Work that rests between its steps, and its result once it is done."""

    def __init__(self, work: Generator[None, None, Evidence]):
        self._work = work
        self.result: Evidence

    def __iter__(self) -> Iterator[None]:
        self.result = yield from self._work
