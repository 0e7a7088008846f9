"""Targets on strata whose scores are known, so that a thousand seeds take seconds."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mptcore.estimation.allocation import Draw, Smooth, StratifiedSample, sample_to_target
from mptcore.estimation.estimate import Estimate
from mptcore.runtime.session import Step, Work
from mptcore.specs.evaluate import pilot_masks
from tests.support.runs import result_of


def drawn_from(pools: Sequence[Tensor], generator: torch.Generator) -> Draw:
    """Scores drawn from those of all masks of each stratum."""

    def draw(counts: Tensor) -> Work[list[Tensor]]:
        yield Step(masks=int(counts.sum()))
        chosen = [
            torch.randint(len(pool), (n,), generator=generator)
            for pool, n in zip(pools, counts.tolist(), strict=True)
        ]
        return [pool[places][None] for pool, places in zip(pools, chosen, strict=True)]

    return draw


def sampled(
    pools: Sequence[Tensor], target: float, seed: int, smooth: Smooth
) -> tuple[Estimate, int]:
    """The estimate of the sum of the pools' means, and how many masks it took."""
    generator = torch.Generator().manual_seed(seed)
    draw, widths = drawn_from(pools, generator), torch.ones(len(pools), dtype=torch.float64)
    pilot = pilot_masks(len(pools))
    work = sample_to_target(draw, widths, target, 100_000, pilot, smooth)
    sample: StratifiedSample = result_of(work)
    return sample.total_estimates()[0], sample.masks


def deviations(pools: Sequence[Tensor], target: float, seeds: int, smooth: Smooth) -> Tensor:
    """(estimate − truth) / standard error of each seed."""
    truth = sum(pool.mean().item() for pool in pools)
    found = [sampled(pools, target, seed, smooth)[0] for seed in range(seeds)]
    return torch.tensor([(one.mean - truth) / (one.std_err or math.nan) for one in found])
