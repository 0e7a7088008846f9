"""Scores of posteriors with two modes against quadrature: three dimensions are proportional to |z|
and the fourth to z, so only x_4 determines the mode. Draws that miss a mode raise the score of x_4,
and their weights do not show of it.
"""

import math

import torch
from torch import Tensor, nn

from benchmarks.calibration.vae import random_vae, simulated
from mptcore.estimation.model import Evidence
from mptcore.families.vae.likelihoods import GaussianLikelihood
from mptcore.families.vae.networks import dense
from mptcore.families.vae.sampled import SampledVae
from mptcore.specs import Dense

N, NODES, EXTENT = 20, 200_001, 7.0
MASKS = [[0, 0, 0, 1], [1, 0, 0, 1], [1, 1, 0, 1], [1, 1, 0, 0], [1, 1, 1, 1]]


def two_modes(noise_precision: float) -> tuple[SampledVae, Tensor]:
    networks = dense(Dense(layers="dense", widths=(2,), activation="relu"), 4, 1)
    vae = random_vae(GaussianLikelihood(noise_precision), networks, 1)
    first = next(part for part in vae.decoder.modules() if isinstance(part, nn.Linear))
    last = vae.decoder.last
    loadings = torch.tensor([[1.0, 1.0], [0.8, 0.8], [1.2, 1.2], [1.0, -1.0]])
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        first.bias.zero_()
        last.get_parameter("weight").copy_(loadings)
        last.bias.zero_()
    return vae, simulated(vae, N)


def true_score(x: Tensor, mask: Tensor, noise_precision: float) -> float:
    """Return the score of one mask by quadrature over z."""
    z = torch.linspace(-EXTENT, EXTENT, NODES, dtype=torch.float64)
    means = torch.stack([z.abs(), 0.8 * z.abs(), 1.2 * z.abs(), z], -1)
    found = []
    for one in x:
        each = 0.5 * math.log(noise_precision / (2 * math.pi))
        each = each - 0.5 * noise_precision * (one - means).square()
        weights = (each * ~mask).sum(-1) - z.square() / 2
        found.append((weights[:, None] + each[:, mask]).logsumexp(0) - weights.logsumexp(0))
    return torch.stack(found).mean().item()


def graded(vae: SampledVae, x: Tensor, mask: Tensor, seed: int) -> tuple[float, float, float]:
    """Return the score, its error by the draws, and the share of its terms in doubt."""
    model = vae.scored_on(x, seed, Evidence(0.0))
    score, _, doubtful, variance = model.sampled_scores(mask[None], 0)[:, 0].tolist()
    return score, math.sqrt(variance), doubtful


def main() -> None:
    torch.set_num_threads(1)
    for noise_precision in (400.0, 2500.0):
        vae, x = two_modes(noise_precision)
        for rows in MASKS:
            mask = torch.tensor(rows).bool()
            truth = true_score(x, mask, noise_precision)
            runs = [graded(vae, x, mask, seed) for seed in range(20)]
            gaps = torch.tensor([score - truth for score, *_ in runs])
            z = gaps / torch.tensor([error for _, error, _ in runs])
            doubtful = sum(share for *_, share in runs) / len(runs)
            print(
                f"noise precision {noise_precision:g}, mask {rows}: gap {gaps.mean():+.4f} ± "
                f"{gaps.std() / math.sqrt(len(runs)):.4f}; z {z.mean():+.2f}, sd {z.std():.2f}, "
                f"largest {z.abs().max():.1f}; {doubtful:.0%} in doubt",
                flush=True,
            )
