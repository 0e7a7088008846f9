"""Means over seeds: how often their intervals by Student's t hold the truth."""

import math
from collections.abc import Iterator

import torch

from service.records.means import over_seeds

REPEATS = 20_000
SEEDS = 5
QUANTILE = 2.776
"""Quantile of Student's t with 4 degrees of freedom: 95 % of it lies within plus or minus this."""
CASES = {  # name of the metric, sd by training, by masks, by the texts that seeds share
    "training, exact values": ("lml", 1.0, 0.0, 0.0),
    "training and masks": ("mpt", 1.0, 1.0, 0.0),
    "masks alone": ("mpt", 0.0, 1.0, 0.0),
    "texts alone": ("pll_population", 0.0, 0.0, 1.0),
    "texts and masks": ("area_population", 0.0, 1.0, 1.0),
    "texts and training": ("area_population", 1.0, 0.0, 1.0),
}


def coverage(case: str, repeats: int) -> float:
    """Return the share of intervals that hold the truth, which is 0."""
    generator = torch.Generator().manual_seed(0)
    inside = sum(abs(mean) <= QUANTILE * error for mean, error in _means(case, repeats, generator))
    return inside / repeats


def _means(case: str, repeats: int, generator: torch.Generator) -> Iterator[tuple[float, float]]:
    name, *spreads = CASES[case]
    training, masks, texts = spreads
    own = math.hypot(masks, texts)  # the variation covered by a seed's own error
    for _ in range(repeats):
        noise = torch.randn(SEEDS, 2, generator=generator, dtype=torch.float64)
        shared = texts * torch.randn(1, generator=generator, dtype=torch.float64)
        values = noise @ torch.tensor([training, masks], dtype=torch.float64) + shared
        metrics = [
            {"name": name, "labels": {"seed": seed}, "value": value, "std_err": own}
            for seed, value in enumerate(values.tolist())
        ]
        (mean,) = over_seeds(metrics)
        assert mean.value is not None
        assert mean.std_err is not None
        yield mean.value, mean.std_err


def main() -> None:
    print(f"Means over {SEEDS} seeds, {REPEATS} repeats: 95 % intervals hold the truth in")
    for case in CASES:
        print(f"{case:24} {coverage(case, REPEATS):6.1%}", flush=True)


if __name__ == "__main__":
    main()
