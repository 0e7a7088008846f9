"""Scores of a VAE that was trained on digits against quadrature over its two latent dimensions: one
mask of 21 of 64 dimensions, scored again and again. Relu decoders bend the posteriors, so that the
weights of some terms are in doubt."""

import math

import torch
from torch import Tensor

from mptcore.estimation.model import Evidence
from mptcore.families.vae.run import VaeRun
from mptcore.families.vae.sampled import SampledVae
from mptcore.families.vae.trainer import VaeTrainer
from mptcore.runtime.state import RunState
from mptcore.specs import VaeExperiment
from tests.support.runs import spec_of

N, MASKED, REPEATS, EPOCHS = 60, 21, 8, 300
NODES, EXTENT, TOGETHER = 1200, 9.0, 60_000
PRECISIONS = (0.1, 0.5, 2.0)
"""Pixels are 0 to 16."""


def trained(noise_precision: float) -> tuple[SampledVae, Tensor]:
    """Return a VAE after EPOCHS of its ELBO, and N of its observations."""
    spec = spec_of(
        {
            "model": {
                "family": "vae",
                "latent_dim": 2,
                "likelihood": {"distribution": "gaussian", "noise_precision": noise_precision},
                "network": {"layers": "dense", "widths": [32], "activation": "relu"},
                "conditionals": {"method": "importance"},
            },
            "data": {"source": "digits"},
            "train": {"objective": ["elbo"], "epochs": EPOCHS, "learning_rate": 0.01},
            "seeds": [4],
            "compute": {"device": "cpu", "threads": 1, "precision": "float64"},
        }
    )
    assert isinstance(spec, VaeExperiment)
    assert spec.train is not None
    (start,) = VaeRun(spec, RunState(), torch.device("cpu"), torch.float64)._starts(4)
    trainer = VaeTrainer(spec.train, [start], spec.seeds)
    for trainer.epoch in range(1, EPOCHS):
        trainer._step(next(iter(trainer._batches())), None)
        trainer.adam.step()
        trainer.adam.zero_grad()
    assert isinstance(start.vae, SampledVae)
    return start.vae, start.x[:N]


def mask_of(seed: int) -> Tensor:
    """Draw a mask of MASKED dimensions."""
    order = torch.rand(64, generator=torch.Generator().manual_seed(seed)).argsort()
    return order.argsort() < MASKED


@torch.no_grad()
def true_score(vae: SampledVae, x: Tensor, mask: Tensor, noise_precision: float) -> float:
    """Return the score of one mask by quadrature over a grid of z."""
    places = torch.linspace(-EXTENT, EXTENT, NODES, dtype=torch.float64)
    constant = 0.5 * math.log(noise_precision / (2 * math.pi))
    sums = []
    for z in torch.split(torch.cartesian_prod(places, places), TOGETHER):
        means, prior = vae.decoder(z), -z.square().sum(-1) / 2
        found = []
        for one in x:
            each = constant - 0.5 * noise_precision * (one - means).square()
            weights = (each * ~mask).sum(-1) + prior
            joint = weights[:, None] + each[:, mask]
            found.append(torch.cat([weights.logsumexp(0)[None], joint.logsumexp(0)]))
        sums.append(torch.stack(found))
    whole = torch.stack(sums).logsumexp(0)  # (N, 1 + MASKED)
    return (whole[:, 1:] - whole[:, :1]).mean().item()


def graded(vae: SampledVae, x: Tensor, mask: Tensor, repeats: int) -> Tensor:
    """Score one mask again and again, with other draws: (4, repeats), a score with its grades."""
    models = [vae.scored_on(x, repeat, Evidence(0.0)) for repeat in range(repeats)]
    return torch.stack([model.sampled_scores(mask[None], 0)[:, 0] for model in models]).mT


def main() -> None:
    torch.set_num_threads(1)
    for noise_precision in PRECISIONS:
        vae, x = trained(noise_precision)
        for seed in range(3):
            mask = mask_of(seed)
            truth = true_score(vae, x, mask, noise_precision)
            values, bias, doubtful, variances = graded(vae, x, mask, REPEATS)
            error = variances.mean().sqrt()
            share, gap = doubtful.mean().item(), (values.mean() - truth).item()
            print(
                f"noise precision {noise_precision:g}: S {truth:.4f}, gap {gap:+.5f}, "
                f"scatter {values.std():.5f}, error by the draws {error:.5f}, "
                f"by doubt {0.5 * share:.5f} ({share:.1%}), bias estimate {bias.mean():+.5f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
