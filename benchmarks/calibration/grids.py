"""Scores over a grid against PPCA, whose conditionals are exact: a linear decoder with Gaussian
noise, from coarse to fine grids and from wide to narrow posteriors. No score that is called final
may be off by more than its tolerance; how many are called final is given too.
"""

import math

import torch
from torch import Tensor

from mptcore.estimation.evaluate import Evaluation
from mptcore.estimation.masks import enumerate_masks
from mptcore.families.linear_gaussian.moment_solvers import MomentSolver
from mptcore.families.linear_gaussian.moments import moment_of
from mptcore.families.linear_gaussian.routes import moment_solver
from mptcore.families.vae.grid import GridVae, GridVaeModel, grid_evidence
from mptcore.families.vae.likelihoods import GaussianLikelihood
from mptcore.families.vae.networks import linear_decoder
from mptcore.protocol.records import Point
from mptcore.runtime.state import RunState
from mptcore.specs import AllSizes, UniformGrid
from mptcore.specs.evaluate import MaskEvaluation

DIM, LATENT_DIM, N = 6, 2, 20


def grid_and_truth(
    nodes: int, noise_precision: float, seed: int, scale: float = 1.0
) -> tuple[GridVaeModel, MomentSolver]:
    """Return a linear VAE over a grid, and PPCA with the same parameters and data. The
    model's loadings are those of the data times `scale`: where that is small, posteriors given few
    dimensions reach beyond the grid."""
    draws = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64)

    decoder = linear_decoder(DIM, LATENT_DIM).double()
    loadings, bias = scale * normal(DIM, LATENT_DIM), 0.3 * normal(DIM)
    with torch.no_grad():
        decoder.last.get_parameter("weight").copy_(loadings)
        decoder.last.bias.copy_(bias)
    x = (
        normal(N, LATENT_DIM) @ loadings.T / scale
        + bias
        + normal(N, DIM) / math.sqrt(noise_precision)
    )
    grid = UniformGrid(method="uniform_grid", nodes=nodes)
    vae = GridVae(None, decoder, GaussianLikelihood(noise_precision), LATENT_DIM, grid).to(x)
    noise = torch.full((DIM,), 1 / noise_precision, dtype=torch.float64)
    truth = moment_solver(loadings, noise, moment_of(x, bias, 1 / noise_precision))
    return GridVaeModel(vae, x, grid_evidence(vae, x)), truth


def final_gaps(model: GridVaeModel, truth: MomentSolver) -> dict[int, float | None]:
    """Return D times the error of each score that is called final, by its size; None for those
    that are not. All masks of each size are scored."""
    masks = AllSizes(schedule="all", design="exhaustive")
    evaluation = Evaluation(MaskEvaluation(masks=masks), {"model": model}, {}, RunState())
    found: dict[int, float | None] = {}
    for record in evaluation.records(torch.Generator()):
        if isinstance(record, Point) and record.series == "score":
            size, value = int(record.x), record.value
            assert value is not None
            of_size = torch.cat([batch.masks for batch in enumerate_masks([size], DIM, 64)])
            gap = value - truth.scores(of_size).mean().item()
            found[size] = None if record.reason else DIM * gap
    return found


def main() -> None:
    torch.set_num_threads(1)
    for noise_precision in (4.0, 100.0, 1000.0):
        for nodes in (20, 60, 120, 240):
            for scale in (1.0, 0.2):
                gaps = [
                    gap
                    for seed in range(5)
                    for gap in final_gaps(
                        *grid_and_truth(nodes, noise_precision, seed, scale)
                    ).values()
                ]
                final = [abs(gap) for gap in gaps if gap is not None]
                print(
                    f"noise precision {noise_precision:g}, {nodes} nodes, scale {scale:g}: "
                    f"{len(final)} of {len(gaps)} scores final, D times the error at most "
                    f"{max(final, default=0.0):.2g} nats",
                    flush=True,
                )
