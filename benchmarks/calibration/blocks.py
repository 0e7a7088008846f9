"""Evidence, AIS and scores of nonlinear decoders with 20 latent dimensions. Each latent dimension
decodes two dimensions of its own, so that every truth is a sum of one-dimensional integrals, which
are computed here by quadrature. The code under test does not know of the blocks."""

import math

import torch
from torch import Tensor, nn

from benchmarks.calibration.vae import calibration, metrics_of, random_vae, simulated
from mptcore.data.dataset import Dataset
from mptcore.families.vae.diagnose import annealed
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from mptcore.families.vae.networks import dense
from mptcore.families.vae.sampled_vae import SampledVae
from mptcore.families.vae.trainer import TrainingStart
from mptcore.protocol.records import Metric
from mptcore.specs import Ais, Dense

K, HIDDEN, N, MASK_SIZE, SEEDS = 20, 4, 20, 20, 20
D = 2 * K
NODES, EXTENT = 20_001, 9.0
CASES: dict[str, Likelihood] = {
    "tanh Gaussian, noise precision 20": GaussianLikelihood(20.0),
    "tanh Gaussian, noise precision 1e4": GaussianLikelihood(1e4),
    "tanh Bernoulli": BernoulliLikelihood(),
}


def block_vae(likelihood: Likelihood) -> SampledVae:
    layers = Dense(layers="dense", widths=(K * HIDDEN,), activation="tanh")
    vae = random_vae(likelihood, dense(layers, D, K), K)
    first = next(part for part in vae.decoder.modules() if isinstance(part, nn.Linear))
    blocks = torch.eye(K, dtype=torch.float64)
    with torch.no_grad():
        first.weight.mul_(blocks.repeat_interleave(HIDDEN, 0))
        last = vae.decoder.last.get_parameter("weight")
        last.mul_(blocks.repeat_interleave(HIDDEN, 1).repeat_interleave(2, 0))
    return vae


def log_integrals(vae: SampledVae, x: Tensor, observed: Tensor) -> Tensor:
    """Return log p of the `observed` ones (2,) of each block's two dimensions, (N, K)."""
    nodes = torch.linspace(-EXTENT, EXTENT, NODES, dtype=torch.float64)
    log_prior = -nodes.square() / 2 - math.log(2 * math.pi) / 2 + math.log(nodes[1] - nodes[0])
    with torch.no_grad():
        outputs = vae.decoder(nodes[:, None].expand(-1, K))  # (G, D)
    found = []
    for row in x:
        if isinstance(vae.likelihood, GaussianLikelihood):
            precision = vae.likelihood.precision
            each = (math.log(precision / (2 * math.pi)) - precision * (row - outputs) ** 2) / 2
        else:
            each = row * outputs - nn.functional.softplus(outputs)
        of_block = (each.view(NODES, K, 2) * observed).sum(-1)
        found.append((of_block + log_prior[:, None]).logsumexp(0))
    return torch.stack(found)


def truths(vae: SampledVae, x: Tensor) -> dict[str, float]:
    """Return the LML, and D times the mean score of all masks of MASK_SIZE. A masked dimension's
    neighbour in its block is masked too with the probability (MASK_SIZE − 1) / (D − 1)."""
    patterns = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    first, second, both = (log_integrals(vae, x, one).sum(-1).mean().item() for one in patterns)
    share = (MASK_SIZE - 1) / (D - 1)
    alone, given = first + second, 2 * both - first - second
    return {"lml": both, "biased_score": share * alone + (1 - share) * given}


def ais_of(vae: SampledVae, x: Tensor, seed: int) -> Metric:
    start = TrainingStart(seed, "elbo", {}, vae, Dataset(x), x, None)
    for step in annealed(start, Ais(temperatures=100, observations=N)):
        if isinstance(step.record, Metric) and step.record.name.startswith("lml_ais"):
            return step.record
    raise AssertionError("annealing yields no lml_ais")


def main() -> None:
    torch.set_num_threads(1)
    for name, likelihood in CASES.items():
        vae = block_vae(likelihood)
        x = simulated(vae, N)
        expected = truths(vae, x)
        print(name, {metric: round(value, 3) for metric, value in expected.items()}, flush=True)
        runs = [metrics_of(vae, x, MASK_SIZE, seed) for seed in range(SEEDS)]
        for metric, truth in expected.items():
            print(f"  {metric}: {calibration([run[metric] for run in runs], truth)}", flush=True)
        found = [ais_of(vae, x, seed) for seed in range(SEEDS)]
        print(f"  lml_ais: {calibration(found, expected['lml'])}", flush=True)


if __name__ == "__main__":
    main()
