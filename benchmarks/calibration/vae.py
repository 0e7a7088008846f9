"""Compare scores and evidence of sampled VAEs with the truth: PPCA for a linear Gaussian decoder,
fine grids over z for other decoders of two latent dimensions. z is (estimate − truth) / std_err.
Over seeds its mean is 0 and its sd 1 if the estimate has no bias and its error is right."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mptcore.estimation.estimate import lml_metrics
from mptcore.estimation.evaluate import Evaluation
from mptcore.estimation.model import Model
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.moments import moment_of
from mptcore.families.linear_gaussian.routes import moment_solver
from mptcore.families.vae.grid import GridVae, grid_evidence
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from mptcore.families.vae.networks import Decoder, Encoder, dense, linear
from mptcore.families.vae.sampled import SampledVae
from mptcore.protocol.records import Metric
from mptcore.runtime.state import RunState
from mptcore.specs import Dense, FixedSize, Importance, UniformGrid
from mptcore.specs.evaluate import MaskEvaluation

SEEDS = 40
MASKS = 20
PRECISION = 20.0


@dataclass(frozen=True)
class Case:
    """A sampled VAE, data drawn from it, a model that has the truth, and the masks' size."""

    vae: SampledVae
    x: Tensor
    truth: Model
    mask_size: int


def linear_gaussian() -> Case:
    """Large loadings and precise noise: the posterior of z is far narrower than the prior."""
    return _linear_gaussian(64, PRECISION, 21)


def needles(noise_precision: float = 1e4) -> Case:
    """Precise noise, of which all but few dimensions are masked: p(x_j | z) is a needle in the
    prior."""
    return _linear_gaussian(40, noise_precision, 39)


def linear_bernoulli() -> Case:
    return _beside_a_grid(random_vae(BernoulliLikelihood(), linear(16, 2), 2))


def nonlinear() -> Case:
    networks = dense(Dense(layers="dense", widths=(16,), activation="tanh"), 16, 2)
    return _beside_a_grid(random_vae(GaussianLikelihood(PRECISION), networks, 2))


def folded(n: int = 24, nodes: int = 400) -> Case:
    """Posteriors with several modes, and bent ones: of one in ten the weights are in doubt before
    they are drawn again."""
    networks = dense(Dense(layers="dense", widths=(16,), activation="tanh"), 3, 2)
    vae = random_vae(GaussianLikelihood(PRECISION), networks, 2, seed=5)
    return _beside_a_grid(vae, n, 2, nodes)


CASES = {
    "linear Gaussian, D = 64, K = 4": linear_gaussian,
    "linear Gaussian, D = 40, K = 4, noise precision 1e4, 39 masked": needles,
    "linear Bernoulli, D = 16, K = 2": linear_bernoulli,
    "tanh Gaussian, D = 16, K = 2": nonlinear,
    "tanh Gaussian, D = 3, K = 2": folded,
}


def metrics_of(vae: SampledVae, x: Tensor, mask_size: int, seed: int) -> Mapping[str, Metric]:
    """Results of one run: the score of MASKS masks, times D, and the evidence."""
    generator = torch.Generator().manual_seed(seed)
    work = vae.evidence(x, generator)
    while True:
        try:
            next(work)
        except StopIteration as end:
            evidence = end.value
            break
    masks = FixedSize(schedule="fixed", size=mask_size, per_size=MASKS)
    models = {"model": vae.scored_on(x, seed, evidence)}
    evaluation = Evaluation(MaskEvaluation(masks=masks), models, {}, RunState())
    found = [*evaluation.records(generator), *lml_metrics("lml", evidence, {})]
    return {one.name: one for one in found if isinstance(one, Metric)}


def true_score(case: Case) -> float:
    """D times the mean true score: of all masks where D is small, else of many."""
    dim, draws = case.x.shape[1], torch.Generator().manual_seed(0)
    if dim <= 16:
        chosen = torch.combinations(torch.arange(dim), case.mask_size)
        masks = torch.zeros(len(chosen), dim, dtype=torch.bool).scatter(1, chosen, True)
    else:
        masks = torch.rand(50_000, dim, generator=draws).argsort(-1).argsort(-1) < case.mask_size
    return dim * case.truth.scores(masks).mean().item()


def main() -> None:
    torch.set_num_threads(1)
    for name, case_of in CASES.items():
        case = case_of()
        truths = {"lml": case.truth.evidence().value, "biased_score": true_score(case)}
        print(name, {metric: round(value, 3) for metric, value in truths.items()}, flush=True)
        runs = [metrics_of(case.vae, case.x, case.mask_size, seed) for seed in range(SEEDS)]
        for metric, truth in truths.items():
            print(f"  {metric}: {calibration([run[metric] for run in runs], truth)}", flush=True)


def calibration(found: list[Metric], truth: float) -> str:
    pairs = [(m.value, m.std_err) for m in found if m.value is not None and m.std_err is not None]
    if len(pairs) < 2:
        return f"final in {len(pairs)} of {len(found)} runs"
    gaps = torch.tensor([value - truth for value, _ in pairs], dtype=torch.float64)
    z = gaps / torch.tensor([error for _, error in pairs], dtype=torch.float64)
    root = math.sqrt(len(pairs))
    return (
        f"final in {len(pairs)} of {len(found)} runs; gap {gaps.mean():+.4f} ± "
        f"{gaps.std() / root:.4f} nats; z {z.mean():+.2f} ± {1 / root:.2f}, sd {z.std():.2f}"
    )


def random_vae(
    likelihood: Likelihood, networks: tuple[Encoder, Decoder], latent_dim: int, seed: int = 3
) -> SampledVae:
    """Return a VAE with large weights, and an encoder that was never trained."""
    encoder, decoder = networks
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in encoder.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
    width = len(decoder.last.bias)
    method = Importance(method="importance")
    vae = SampledVae(encoder, decoder, likelihood, latent_dim, method, width).double()
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            values = torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
            parameter.copy_(values if parameter.ndim == 2 else 0.3 * values)
    return vae


def simulated(vae: SampledVae, n: int) -> Tensor:
    draws = torch.Generator().manual_seed(1)
    z = torch.randn(n, vae.latent_dim, generator=draws, dtype=torch.float64)
    with torch.no_grad():
        return vae.likelihood.sample(vae.decoder(z), draws)


def _linear_gaussian(dim: int, noise_precision: float, mask_size: int) -> Case:
    vae = random_vae(GaussianLikelihood(noise_precision), linear(dim, 4), 4)
    assert isinstance(vae.decoder.last, nn.Linear)
    x, mean = simulated(vae, 20), vae.decoder.last.bias.detach()
    noise = torch.full((dim,), 1 / noise_precision, dtype=torch.float64)
    density = LowRankGaussian(vae.decoder.last.weight.detach(), mean, noise)
    truth = moment_solver(
        density.loadings, density.noise_variance, moment_of(x, mean, 1 / noise_precision)
    )
    return Case(vae, x, truth, mask_size)


def _beside_a_grid(vae: SampledVae, n: int = 10, mask_size: int = 2, nodes: int = 300) -> Case:
    x = simulated(vae, n)
    uniform = UniformGrid(method="uniform_grid", nodes=nodes)
    grid = GridVae(None, vae.decoder, vae.likelihood, vae.latent_dim, uniform).to(x)
    evidence = grid_evidence(grid, x)
    assert evidence.not_final_reason is None
    return Case(vae, x, grid.scored_on(x, 0, evidence), mask_size)
