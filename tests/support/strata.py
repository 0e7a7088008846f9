"""Targets on strata whose scores are known, so that a thousand seeds take seconds."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mptcore.estimation.allocation import Draw, StratifiedSample, sample_to_target
from mptcore.estimation.estimate import Estimate
from mptcore.runtime.state import MaskPlan, Records
from mptcore.specs.evaluate import pilot_masks
from tests.support.runs import result_of

MAX_MASKS = 100_000


def drawn_from(pools: Sequence[Tensor], generator: torch.Generator) -> Draw:
    """Scores drawn from those of all masks of each stratum."""

    def draw(counts: Tensor, enumerated: Tensor) -> Records[Tensor]:
        yield None
        found = []
        for pool, n, whole in zip(pools, counts.tolist(), enumerated.tolist(), strict=True):
            assert not whole or n == len(pool)
            places = (
                torch.arange(n) if whole else torch.randint(len(pool), (n,), generator=generator)
            )
            found.append(pool[places])
        return torch.cat(found)[None]

    return draw


def sampled(
    pools: Sequence[Tensor], target: float, seed: int, finite: bool = False
) -> tuple[Estimate, int]:
    """The estimate of the sum of the pools' means, and how many masks it took. Pools that are
    `finite` are all there is, and can be enumerated."""
    generator = torch.Generator().manual_seed(seed)
    draw, widths = drawn_from(pools, generator), torch.ones(len(pools), dtype=torch.float64)
    available = torch.tensor([len(pool) if finite else math.inf for pool in pools]).double()
    pilot, plan = pilot_masks(len(pools), MAX_MASKS), MaskPlan(MAX_MASKS, MAX_MASKS)
    work = sample_to_target(draw, plan, widths, target, pilot, available=available)
    sample: StratifiedSample = result_of(work)
    return sample.total_estimates()[0], sample.masks


def deviations(pools: Sequence[Tensor], target: float, seeds: int, finite: bool = False) -> Tensor:
    """(estimate − truth) / standard error of each seed whose error is known, (seeds,); 0 where
    nothing is left to chance."""
    truth = sum(pool.mean().item() for pool in pools)
    found = [sampled(pools, target, seed, finite)[0] for seed in range(seeds)]
    z = []
    for one in found:
        if one.std_err == 0:
            assert abs(one.mean - truth) < 1e-9
        if one.known_std_err is not None:
            z.append((one.mean - truth) / one.known_std_err if one.known_std_err else 0.0)
    return torch.tensor(z)


def spiked(strata: int, share: float, height: float, masks: int = 20_000) -> list[Tensor]:
    """Scores of about −1, but for a share of the masks of each stratum: those are lower by a
    height."""
    generator = torch.Generator().manual_seed(1)
    pools = []
    for _ in range(strata):
        scores = -1 + 0.1 * torch.randn(masks, generator=generator, dtype=torch.float64)
        scores[: round(share * masks)] -= height
        pools.append(scores)
    return pools
