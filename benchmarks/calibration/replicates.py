"""Coverage of errors and intervals from a fixed number of masks of each size, over seeds.

Scores of all masks come from dense Gaussian conditionals, written here anew; draws from them go
through the product's estimates. Only what the product reports is counted.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat

import torch
from torch import Tensor

from mptcore.estimation.estimate import Estimate
from mptcore.estimation.scores import cumulative_estimate, size_estimates, size_kurtosis
from mptcore.specs import AllSizes
from mptcore.specs.masks import Design

REPEATS = 4000
DIM, LATENT_DIM, ROWS = 8, 2, 40
KINDS = ("model", "wide", "wide in both", "random", "shared")
"""Data from the model; one dimension that is five times as wide as the model says; one that is ten
times as wide in model and data; random parameters; published noise, shared by the dimensions."""
PER_SIZE = (8, 12, 16, 20, 30)


@cache
def scores_of(kind: str, seed: int = 0) -> dict[frozenset[int], float]:
    """Return S(x; M) of every mask M."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    loadings, noise = normal(DIM, LATENT_DIM), torch.full((DIM,), 0.2, dtype=torch.float64)
    errors = normal(ROWS, 1 if kind == "shared" else DIM) * noise.sqrt()
    x = normal(ROWS, LATENT_DIM) @ loadings.T + errors
    if kind == "wide":
        x[:, 0] *= 5
    if kind == "wide in both":
        x[:, 0] *= 10
        loadings[0] *= 10
        noise[0] *= 100
    if kind == "random":
        loadings = normal(DIM, LATENT_DIM)
    covariance = loadings @ loadings.T + noise.diag()
    masks = (one for size in range(1, DIM + 1) for one in itertools.combinations(range(DIM), size))
    return {frozenset(one): _score(x, covariance, list(one)) for one in masks}


def _score(x: Tensor, covariance: Tensor, masked: list[int]) -> float:
    rest = [j for j in range(DIM) if j not in masked]
    slopes = torch.linalg.solve(covariance[rest][:, rest], covariance[rest][:, masked])
    residuals = x[:, masked] - x[:, rest] @ slopes
    variance = covariance.diagonal()[masked] - (covariance[rest][:, masked] * slopes).sum(0)
    log_probs = -0.5 * (2 * math.pi * variance).log() - 0.5 * residuals.square() / variance
    return float(log_probs.mean())


@dataclass(frozen=True)
class Coverage:
    """Statistics of the estimates of one figure over seeds."""

    given: float
    """The share of seeds that gave an error."""
    sd: float
    within: float
    """Share of intervals of two reported errors that contain the truth."""
    interval: float
    """The share of intervals by Student's t that hold it."""
    max_z: float

    @classmethod
    def of(cls, estimates: Sequence[Estimate], truth: float) -> "Coverage":
        known = [(one.mean - truth, one.known_std_err, one) for one in estimates]
        parts = [(gap, error, one.half_interval or 2 * error) for gap, error, one in known if error]
        if not parts:
            return cls(0.0, math.nan, math.nan, math.nan, math.nan)
        gaps, errors, halves = torch.tensor(parts, dtype=torch.float64).abs().unbind(1)
        z = gaps / errors
        inside = (gaps < halves).double().mean().item()
        sd = z.square().mean().sqrt().item()
        within = (z < 2).double().mean().item()
        return cls(len(parts) / len(estimates), sd, within, inside, z.max().item())


def of_size(kind: str, size: int, per_size: int, repeats: int) -> Coverage:
    pool = torch.tensor([s for mask, s in scores_of(kind).items() if len(mask) == size]).double()
    masks, kurtosis = AllSizes(per_size=per_size), size_kurtosis(size, DIM)
    drawn = _drawn(pool, per_size, repeats)
    found = size_estimates(drawn[None], masks, repeat(kurtosis))
    return Coverage.of(found, pool.mean().item())


def of_sum(kind: str, design: Design, per_size: int, repeats: int) -> Coverage:
    scores, masks = scores_of(kind), AllSizes(per_size=per_size, design=design)
    generator = torch.Generator().manual_seed(per_size)
    orders = torch.rand(repeats, DIM, per_size, DIM, generator=generator).argsort(-1)
    if design == "nested":
        orders = orders[:, :1].expand(-1, DIM, -1, -1)
    table = torch.zeros(2**DIM, dtype=torch.float64)
    for mask, score in scores.items():
        table[sum(2**j for j in mask)] = score
    codes = (2**orders).cumsum(-1)  # of the first m of each order
    values = torch.stack([table[codes[:, m, :, m]] for m in range(DIM)], 1)  # (repeats, D, P)
    found = [cumulative_estimate([one[None]], masks) for one in values]
    sizes = [[s for mask, s in scores.items() if len(mask) == m] for m in range(1, DIM + 1)]
    return Coverage.of(found, sum(math.fsum(size) / len(size) for size in sizes))


def _drawn(pool: Tensor, count: int, repeats: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return pool[torch.randint(len(pool), (repeats, count), generator=generator)]


def coverages(per_size: int, repeats: int) -> Iterator[tuple[str, Coverage]]:
    """Yield the coverage of each figure of each kind. The mask of size D is one, and exact."""
    for kind in KINDS:
        for size in (1, 2, 4, DIM - 1):
            yield f"{kind}, S({size})", of_size(kind, size, per_size, repeats)
        for design in ("independent", "nested"):
            yield f"{kind}, sum, {design}", of_sum(kind, design, per_size, repeats)


def main() -> None:
    torch.set_num_threads(1)
    print(f"D = {DIM}, {REPEATS} seeds; the worst kinds by Student's t, of those with an error")
    print(f"{'P':>3} {'':36} {'sd z':>6} {'max |z|':>8} {'within 2':>9} {'by t':>7}")
    for per_size in PER_SIZE:
        found = [one for one in coverages(per_size, REPEATS) if one[1].given]
        for what, one in sorted(found, key=lambda each: each[1].interval)[:4]:
            shares = f"{one.within:9.1%} {one.interval:7.1%}"
            print(f"{per_size:3} {what:36} {one.sd:6.2f} {one.max_z:8.1f} {shares}", flush=True)


if __name__ == "__main__":
    main()
