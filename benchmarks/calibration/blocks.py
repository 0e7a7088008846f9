"""Evidence, AIS and scores of nonlinear decoders with 20 latent dimensions. Each latent dimension
decodes two dimensions of its own, so that every truth is a sum of one-dimensional integrals, which
are computed here by quadrature. The code under test does not know of the blocks."""

import math

import torch
from torch import Tensor, nn

from benchmarks.calibration.vae import calibration, random_vae, simulated
from mptcore.data.dataset import Dataset
from mptcore.estimation.estimate import lml_metrics
from mptcore.estimation.model import Evidence
from mptcore.families.vae.ais import annealed
from mptcore.families.vae.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from mptcore.families.vae.networks import dense
from mptcore.families.vae.sampled import SampledVae
from mptcore.families.vae.trainer import TrainingStart
from mptcore.protocol.records import Metric
from mptcore.specs import Ais, Dense, Importance
from tests.support.runs import result_of

K, HIDDEN, N, SEEDS, MASKS = 20, 4, 10, 20, 10
SIZES = (1, 10, 30, 39)
D = 2 * K
NODES, EXTENT = 20_001, 9.0
CASES: dict[str, Likelihood] = {
    "tanh Gaussian, noise precision 20": GaussianLikelihood(20.0),
    "tanh Gaussian, noise precision 1e4": GaussianLikelihood(1e4),
    "tanh Bernoulli": BernoulliLikelihood(),
}


def block_vae(likelihood: Likelihood, monotone: bool = True) -> SampledVae:
    """Return a VAE of K blocks. Monotone decoders have posteriors with one mode; of others the
    posterior has the product of all blocks' modes."""
    layers = Dense(layers="dense", widths=(K * HIDDEN,), activation="tanh")
    vae = random_vae(likelihood, dense(layers, D, K), K)
    first = next(part for part in vae.decoder.modules() if isinstance(part, nn.Linear))
    blocks = torch.eye(K, dtype=torch.float64)
    last = vae.decoder.last.get_parameter("weight")
    with torch.no_grad():
        first.weight.mul_(blocks.repeat_interleave(HIDDEN, 0))
        if monotone:
            first.weight.abs_()
            last.abs_()
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


def block_integrals(vae: SampledVae, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p(x_j) for each dimension (N, D), and log p of each block (N, K)."""
    patterns = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    first, second, both = (log_integrals(vae, x, one) for one in patterns)
    return torch.stack([first, second], -1).flatten(1), both


def true_score(alone: Tensor, both: Tensor, masked: Tensor) -> float:
    """Return the score of one mask (D,). Where the other dimension of a block is observed,
    log p(x_j | x_R) is log p of the block less log p of the other."""
    other = torch.arange(D) ^ 1
    given = both.repeat_interleave(2, -1) - alone[:, other]
    each = torch.where(masked[other], alone, given)
    return each[:, masked].mean().item()


def ais_of(vae: SampledVae, x: Tensor, seed: int) -> Metric:
    start = TrainingStart(seed, "elbo", {}, vae, Dataset(x), x, None)
    for record in annealed(start, Ais(temperatures=400, chains=16, observations=N)):
        if isinstance(record, Metric) and record.name.startswith("lml_ais"):
            return record
    raise AssertionError("annealing yields no lml_ais")


def evidence_of(vae: SampledVae, x: Tensor, seed: int) -> Metric:
    found = result_of(vae.evidence(x, torch.Generator().manual_seed(seed)))
    return next(iter(lml_metrics("lml", found, {})))


def report_scores(vae: SampledVae, x: Tensor, alone: Tensor, both: Tensor) -> None:
    """Print the gaps of D times the scores of single masks, by their size."""
    model = vae.scored_on(x, 0, Evidence(0.0))
    for size in SIZES:
        order = torch.rand(MASKS, D, generator=torch.Generator().manual_seed(size)).argsort(-1)
        masks = order.argsort(-1) < size
        truth = torch.tensor([true_score(alone, both, mask) for mask in masks])
        values, _, doubtful, variances = model.sampled_scores(masks, 0)
        gaps, errors = D * (values - truth), D * variances.sqrt()
        z = gaps / errors
        print(
            f"  D · S({size}): gap {gaps.mean():+.3f} ± {gaps.std() / MASKS**0.5:.3f} nats; "
            f"z {z.mean():+.2f}, sd {z.std():.2f}; {doubtful.mean():.1%} in doubt",
            flush=True,
        )


def main() -> None:
    torch.set_num_threads(1)
    for name, likelihood in CASES.items():
        vae = block_vae(likelihood)
        x = simulated(vae, N)
        alone, both = block_integrals(vae, x)
        truth = both.sum(-1).mean().item()
        print(f"{name}: lml {truth:.3f}", flush=True)
        for method in (evidence_of, ais_of):
            found = [method(vae, x, seed) for seed in range(SEEDS)]
            print(f"  {method.__name__}: {calibration(found, truth)}", flush=True)
        for draws in (200, 1000):
            print(f"  {draws} draws", flush=True)
            vae.conditionals = Importance(method="importance", draws=draws)
            report_scores(vae, x, alone, both)


if __name__ == "__main__":
    main()
