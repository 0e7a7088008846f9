"""Comparisons of presets over a few seeds: how often they find agreement where the true mean is a
whole margin away, for differences between seeds that are normal or skewed. The margin is large
beside the error, the worst case; 5 % is the level of the tests."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mptcore.presets.results import Comparison, Measured, equivalent, exceeds
from mptcore.stats import t_quantile

REPEATS = 100_000
SEEDS = (3, 5, 10, 20)
MARGIN = 100.0
"""In standard deviations of a seed."""
Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]
"""Draw differences with mean 0 and standard deviation 1."""


def _lognormal(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    sd = math.sqrt(math.e * (math.e - 1))
    return (generator.lognormal(0, 1, shape) - math.exp(0.5)) / sd


DRAWS: dict[str, Draw] = {
    "normal": lambda generator, shape: generator.standard_normal(shape),
    "exponential": lambda generator, shape: generator.exponential(1, shape) - 1,
    "lognormal, σ = 1": _lognormal,
}


def agreement(draw: Draw, seeds: int, sign: int, repeats: int, one_sided: bool = False) -> float:
    """Return the share of repeats in which a comparison agrees, whose true value is at its upper
    bound. `sign` −1 mirrors the differences: their long tail is then below the bound."""
    values = sign * draw(np.random.default_rng(0), (repeats, seeds))
    means, errors = values.mean(1), values.std(1, ddof=1) / math.sqrt(seeds)
    reach = t_quantile(0.95 if one_sided else 0.975, seeds - 1)
    share = float((means + reach * errors <= 0).mean())
    for mean, error in zip(means[:200].tolist(), errors[:200].tolist(), strict=True):
        expected = mean + reach * error <= 0
        assert compared(mean, error, seeds - 1, one_sided).agrees == expected
    return share


def compared(mean: float, std_err: float, degrees: int, one_sided: bool) -> Comparison:
    """Compare a mean, given as its distance above the bound, with the bound of a preset."""
    if one_sided:
        return exceeds("", Measured(-mean, std_err, degrees), least=0, expected=MARGIN)
    return equivalent("", Measured(MARGIN + mean, std_err, degrees), value=0, margin=MARGIN)


def main() -> None:
    print(f"Found to agree at a bound, {REPEATS} repeats\n")
    heads = [f"{n} seeds" for n in SEEDS]
    print(f"| differences | long tail | test | {' | '.join(heads)} |")
    print("|---|---|---|" + "---|" * len(SEEDS))
    for name, draw in DRAWS.items():
        for sign, tail in ((1, "beyond the bound"), (-1, "within the bound")):
            for one_sided, test in ((True, "a bound"), (False, "a margin")):
                shares = [agreement(draw, n, sign, REPEATS, one_sided) for n in SEEDS]
                cells = " | ".join(f"{share:.1%}" for share in shares)
                print(f"| {name} | {tail} | {test} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
