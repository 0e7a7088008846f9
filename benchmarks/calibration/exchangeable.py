"""Runs with a target on exchangeable columns, where all single dimensions have the same score, so
that scores of single dimensions predict nothing: z as in `targets`, whose truth is the LML. The
scores of enumerated sizes are compared with those of all masks."""

import numpy as np
import torch
from torch import Tensor

from mptcore.estimation.evaluate import Evaluation
from mptcore.estimation.masks import enumerate_masks
from mptcore.estimation.model import Model
from mptcore.families.linear_gaussian.initial import closed_form
from mptcore.families.linear_gaussian.moments import second_moment
from mptcore.families.linear_gaussian.routes import solver_for
from mptcore.protocol.records import Point
from mptcore.runtime.state import RunState
from mptcore.specs import MaskEvaluation
from tests.support.runs import metric, records_of, std_err_of, value_of

SEEDS = 1000
CPU = torch.device("cpu")


def cyclic_shifts(signals: int, dim: int) -> Tensor:  # (2 · signals · dim, dim)
    """Return all cyclic shifts of random smooth signals, and their negatives, in 64ths."""
    x = torch.from_numpy(np.random.default_rng(7).standard_normal((signals, dim)))
    x = x + 0.8 * x.roll(1, 1) + 0.5 * x.roll(2, 1)
    x = (64 * x).round() / 64
    x = torch.cat([x.roll(shift, 1) for shift in range(dim)])
    return torch.cat([x, -x])


def one_hot(*levels: int) -> Tensor:
    """Return all combinations of factors with these numbers of levels, a column for each level."""
    places = torch.cartesian_prod(*(torch.arange(n) for n in levels)).view(-1, len(levels))
    columns = [torch.nn.functional.one_hot(places[:, i], n) for i, n in enumerate(levels)]
    return torch.cat(columns, 1).double()


def with_wide_column(x: Tensor) -> Tensor:
    """Return data with one more column, which is ten times as wide as the first."""
    generator = torch.Generator().manual_seed(8)
    wide = 10 * x[:, :1].std() * torch.randn(len(x), 1, generator=generator, dtype=torch.float64)
    return torch.cat([x, wide], 1)


DATA = {
    "cyclic shifts, D = 10": (cyclic_shifts(6, 10), 1, None, 0.05),
    "cyclic shifts, D = 40": (cyclic_shifts(6, 40), 1, None, 0.2),
    "one-hot, 6 + 6 levels": (one_hot(6, 6), 10, 50.0, 0.05),
    "one-hot, 10 + 10 levels": (one_hot(10, 10), 18, 50.0, 0.05),
    "one-hot, 10 + 10 levels, a wide column": (with_wide_column(one_hot(10, 10)), 18, 50.0, 0.2),
}
"""The data, K, the noise precision and the target."""


def ppca_of(x: Tensor, latent_dim: int, noise_precision: float | None) -> Model:
    """Return the PPCA that is fitted to the data."""
    mean = x.mean(0)
    density = closed_form(second_moment(x, mean), mean, latent_dim, noise_precision)
    return solver_for(density, x, CPU)


def deviations(model: Model, target: float, seeds: int) -> tuple[Tensor, float, float]:
    """Return z of each seed (seeds,), the mean number of masks, and the largest error of a size
    that was enumerated."""
    evaluate = MaskEvaluation.model_validate({"target_std_err": target})
    truths: dict[int, float] = {}
    z, masks, error = [], 0.0, 0.0
    for seed in range(seeds):
        evaluation = Evaluation(evaluate, {"model": model}, {}, RunState())
        records = records_of(evaluation.records(torch.Generator().manual_seed(seed)))
        gap = metric(records, "difference")
        z.append(value_of(gap) / std_err_of(gap))
        masks += value_of(metric(records, "masks")) / seeds
        for record in records:
            if isinstance(record, Point) and record.series == "score" and record.std_err == 0:
                size = int(record.x)
                if size not in truths:
                    batches = enumerate_masks([size], model.dim, 4096)
                    scores = torch.cat([model.scores(batch.masks) for batch in batches])
                    truths[size] = scores.mean().item()
                assert record.value is not None
                error = max(error, abs(record.value - truths[size]))
    return torch.tensor(z), masks, error


def main() -> None:
    torch.set_num_threads(1)
    print(f"Targets on exchangeable columns, {SEEDS} seeds each")
    print("| data | target | mean z | sd of z | within 2 | masks | error of enumerated sizes |")
    print("|---|---|---|---|---|---|---|")
    for name, (x, latent_dim, noise_precision, target) in DATA.items():
        z, masks, error = deviations(ppca_of(x, latent_dim, noise_precision), target, SEEDS)
        within = (z.abs() < 2).double().mean()
        print(
            f"| {name} | {target} | {z.mean():+.3f} | {z.std():.3f} | {within:.1%} "
            f"| {masks:.0f} | {error:.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
