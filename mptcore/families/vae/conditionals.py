"""Estimate log p(x_j | x_R) from draws of z given x_R, and find the terms that need other draws."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.families.vae.importance import (
    debiased,
    doubtful,
    grouped,
    khats,
    log_mean_variance,
    uneven,
)

ENOUGH_ESS, MIN_USE = 40, 5
"""Expected effective sample size from which a term needs no separate draws, and from which the term
uses the shared draws."""
MAX_NARROW, MIN_NARROW = 2, 64
"""Maximum number of conditionals per observation, on average, that get draws of their own, and the
minimum for a set of observations scored together."""
GRADED_COLUMNS = 32
"""Number of masked dimensions whose weights are graded, among those without draws of their own."""
NO_MEAN = 1.0
"""Value of k̂ above which the mean of the terms may not exist. With k̂ ≥ 0.7 and no draws of their
own, errors are still reported: in a test 200 draws had an rms error of 0.19 nats and reported 0.24.
"""


class Ratio(NamedTuple):
    """Estimates of log (Σ w p(x_j | z) / Σ w), (P,) each."""

    log_probs: Tensor
    bias: Tensor  # estimated
    variance: Tensor  # to the first order
    doubtful: Tensor  # 1 where the weights cannot be trusted, else 0


def ratio_of(weights: Tensor, joint: Tensor) -> Ratio:
    """Compute the ratio from logarithms of w and of w p(x_j | z), (draws, P)."""
    draws, few = len(weights), uneven(joint) | uneven(weights)
    influence = joint.softmax(0) - weights.softmax(0)
    variance = influence.square().sum(0) * draws / (draws - 1)
    values, bias = debiased(grouped(joint), grouped(weights), few)
    return Ratio(values, bias, variance, torch.maximum(doubtful(weights), doubtful(joint)))


Narrow = Callable[[Tensor], Ratio]
"""Estimate pairs (B, 2) of an observation and the position of j among the masked dimensions, with
draws of their own."""


class Conditionals(NamedTuple):
    """Estimates of log p(x_j | x_R) of N observations for the masked j of one mask."""

    log_probs: Tensor  # (N, M)
    bias: Tensor  # (N, M): estimated
    doubtful: Tensor  # (N,): the share of its j whose weights cannot be trusted
    variance: Tensor  # (): of the mean over N and M, by the draws


def assembled(parts: Sequence[tuple[Tensor, Conditionals]]) -> Conditionals:
    """Join the results of parts. Each part has its rows and their results."""
    order = torch.cat([rows for rows, _ in parts]).argsort()
    log_probs, bias, doubtful = (
        torch.cat([getattr(part, name) for _, part in parts])[order]
        for name in ("log_probs", "bias", "doubtful")
    )
    shares = [len(rows) / len(order) for rows, _ in parts]
    variances = [share**2 * part.variance for share, (_, part) in zip(shares, parts, strict=True)]
    return Conditionals(log_probs, bias, doubtful, torch.stack(variances).sum())


def expected_ess(joint: Tensor, draws: int) -> Tensor:
    """Return the effective sample size to expect of terms whose logarithms a pilot measured (pilot
    draws, ...), with `draws` draws. It is 0 if the pilot is too small."""
    return (draws / (log_mean_variance(joint) * len(joint))).nan_to_num(0.0, posinf=math.inf)


@dataclass
class Ratios:
    """Estimates of Σ w p(x_j | z) / Σ w from draws of z given x_R.

    Draws that cover p(z | x_R) may miss the region where p(x_j | z) is not tiny. For example, with
    all dimensions masked they are draws from the prior, and very few of them can explain an x_j
    with little noise. Then few terms contribute to the sum. Such "narrow" dimensions j need draws
    given x_j too. They are selected with other draws than these: a selection by the same draws
    would omit the dimensions that these draws missed, and bias the remaining terms upwards."""

    weights: Tensor  # (draws, N): log w
    joint: Tensor  # (draws, N, M): log w p(x_j | z)
    expected: Tensor  # (N, M): the effective sample size of the sum, by a pilot

    @property
    def narrow(self) -> Tensor:  # (N, M)
        return self.expected < ENOUGH_ESS

    def conditionals(self, from_own: Narrow, generator: torch.Generator) -> Conditionals:
        """Return the conditionals. If many are narrow, only a random sample of them gets draws of
        its own."""
        sums, counts = grouped(self.joint), grouped(self.weights)[..., None]
        few = uneven(self.joint) | uneven(self.weights)[:, None]
        log_probs, bias = debiased(sums, counts, few)
        share, variance = self._doubtful(), self._variance()
        hopeless = self.expected < MIN_USE
        for stratum in (hopeless, self.narrow & ~hopeless):
            pairs = stratum.nonzero()  # (P, 2)
            if len(pairs) == 0:
                continue
            chosen = _sample(len(pairs), len(stratum), generator)
            own = from_own(pairs[chosen])
            # Hopeless estimates may be thousands of nats too low. They are ignored.
            rough = torch.where(hopeless, 0, log_probs)[stratum].double()
            all_values, error = _regressed(own.log_probs.double(), rough, chosen)
            log_probs[stratum] = all_values.to(log_probs)
            bias[stratum] = own.bias.mean().to(bias)
            share = share + stratum.double().mean(1) * own.doubtful.mean()
            part = len(pairs) / stratum.numel()
            # The scatter of the sample holds that of its draws (Cochran 1977, Sec. 10.4).
            variance = variance + part**2 * (error + own.variance.mean() / len(pairs))
        share = torch.maximum(share, doubtful(self.weights))
        return Conditionals(log_probs, bias, share, variance)

    def _doubtful(self) -> Tensor:
        """Return the share (N,) of doubtful terms of each observation, without the narrow ones."""
        places, device = self.joint.shape[-1], self.joint.device
        count = min(places, GRADED_COLUMNS)
        chosen = torch.linspace(0, places - 1, count, device=device).round().long()
        rest = ~self.narrow[:, chosen]
        joint = self.joint[..., chosen]
        bad = (uneven(joint) | (khats(joint) > NO_MEAN)) & rest
        found = bad.sum() / rest.sum().clamp(min=1).double()
        return (~self.narrow).double().mean(1) * found

    def _variance(self) -> Tensor:
        """Return the first-order variance of the mean over N and M, without that of the narrow
        terms' draws."""
        gaps = self.joint.softmax(0) - self.weights.softmax(0)[..., None]
        influence = torch.where(self.narrow, 0, gaps).mean(-1)
        draws, observations = influence.shape
        return influence.square().sum() * draws / (draws - 1) / observations**2


def _sample(pairs: int, observations: int, generator: torch.Generator) -> Tensor:
    most = max(MIN_NARROW, MAX_NARROW * observations)
    return torch.randperm(pairs, generator=generator, device=generator.device)[:most]


def _regressed(values: Tensor, rough: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return all values (P,), estimated by regression on rough values of all terms (P,) from a
    random sample of precise values (B,) at the chosen positions; and the variance of their mean due
    to the choice (Cochran 1977, Sec. 7.3)."""
    known = rough[chosen]
    gaps = known - known.mean()
    slope = ((gaps * values).sum() / gaps.square().sum()).nan_to_num(0.0).clamp(0, 1)
    found = values.mean() + slope * (rough - known.mean())
    left = (values - found[chosen]).square().sum() / max(1, len(chosen) - 2)
    found[chosen] = values
    return found, left / len(chosen) * (1 - len(chosen) / len(rough))
