"""Training against other optimisers: a masked language model beside plain transformers and an AdamW
written here, step by step; linear VAEs beside the closed-form maximum of the LML (Tipping & Bishop
1999, which is the ELBO's too: Lucas et al. 2019), and beside SciPy's L-BFGS on a quadrature of our
own where there is no closed form."""

import math
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from mptcore.data.dataset import load_arrays
from mptcore.families.masked_lm.masks import MaskedBatch, Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.trainer import MaskedLmTrainer
from mptcore.protocol.records import Point
from mptcore.run import run
from mptcore.specs import MaskedLmTrain, VaeExperiment
from tests.support import tiny_lm
from tests.support.runs import spec_of
from tests.support.texts import CPU, corpus_of, sequence

STEPS, WARMUP, RATE, DECAY, MAX_NORM = 100, 10, 3e-3, 0.1, 0.5
BETAS, EPSILON = (0.9, 0.999), 1e-8
PRECISION, K, DIM, N, SEED = 1.0, 2, 8, 200, 4
NODES, EPOCHS = 12, 1500


def trainer(count: int) -> MaskedLmTrainer:
    masks = {"schedule": "fixed", "rate": 0.25}
    steps = {"steps": count, "batch_size": 8, "warmup_steps": WARMUP, "learning_rate": RATE}
    other = {"masks": masks, "weight_decay": DECAY, "max_grad_norm": MAX_NORM}
    spec = MaskedLmTrain.model_validate(steps | other)
    model = MaskedLm(network(), CPU, torch.float64)
    masker = Masker(corpus_of(tiny_lm.lines(40)), mask_id=4, vocabulary=15)
    return MaskedLmTrainer(spec, model, masker, None, seed=4)


def network() -> Any:
    dropout: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return tiny_lm.network(scale=4.0, **dropout)


def plain_loss(plain: Any, masks: MaskedBatch) -> Tensor:
    """Return the loss per token, one sequence at a time: each sequence counts by its length."""
    losses = []
    for i in range(len(masks)):
        inputs, targets, _, masked = sequence(masks, i)
        log_probs = plain(input_ids=inputs[None]).logits[0].log_softmax(-1)
        losses.append(-log_probs[masked, targets[masked]].mean() * masks.sizes[i])
    return torch.stack(losses).sum() / masks.sizes.sum()


class PlainAdamW:
    """AdamW (Loshchilov & Hutter 2019), with gradients clipped by their norm (Pascanu et al. 2013)
    and a learning rate that rises and then falls linearly."""

    def __init__(self, parameters: list[Tensor], steps: int):
        self.parameters, self.steps = parameters, steps
        self.first = [torch.zeros_like(one) for one in parameters]
        self.second = [torch.zeros_like(one) for one in parameters]

    @torch.no_grad()
    def step(self, gradients: list[Tensor], t: int) -> None:
        norm = math.sqrt(sum(one.square().sum().item() for one in gradients))
        clip = min(1.0, MAX_NORM / (norm + 1e-6))
        falls = (self.steps - t + 1) / (self.steps - WARMUP)
        rate = RATE * (t / WARMUP if t <= WARMUP else falls)
        for i, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            self.first[i] += (1 - BETAS[0]) * (clip * gradient - self.first[i])
            self.second[i] += (1 - BETAS[1]) * ((clip * gradient) ** 2 - self.second[i])
            mean = self.first[i] / (1 - BETAS[0] ** t)
            root = (self.second[i] / (1 - BETAS[1] ** t)).sqrt()
            if parameter.ndim > 1:
                parameter *= 1 - rate * DECAY
            parameter -= rate * mean / (root + EPSILON)


def language_model(steps: int) -> tuple[float, float, float]:
    """Return the largest difference of a step's loss, the largest difference of a weight at the
    end, and by how much the loss has fallen."""
    ours, masks_only, plain = trainer(steps), trainer(steps), network().double()
    plain.set_attn_implementation("sdpa")
    adam = PlainAdamW(list(plain.parameters()), steps)
    losses = []
    for step in range(steps):
        ours.epoch = masks_only.epoch = step
        masks = masks_only._masked(masks_only._next_sequences(masks_only.spec.batch_size))
        loss = plain_loss(plain, masks)
        adam.step(list(torch.autograd.grad(loss, adam.parameters)), step + 1)
        losses.append((ours.step(), loss.item()))
    pairs = zip(ours.network.parameters(), plain.parameters(), strict=True)
    gaps = [(one - other).abs().max().item() for one, other in pairs]
    tenth = steps // 10
    fallen = sum(a for a, _ in losses[:tenth]) - sum(a for a, _ in losses[-tenth:])
    return max(abs(a - b) for a, b in losses), max(gaps), fallen / tenth


def linear_vae(
    objective: str, data: dict[str, Any], likelihood: dict[str, Any], nodes: int
) -> VaeExperiment:
    grid: dict[str, Any] = {"method": "gauss_hermite", "nodes": nodes}
    conditionals = {"method": "importance"} if objective == "elbo" else grid
    train = {"objective": [objective], "epochs": EPOCHS, "learning_rate": 0.02}
    spec = spec_of(
        {
            "model": {"family": "linear_vae", "latent_dim": K, "conditionals": conditionals}
            | {"likelihood": likelihood},
            "data": {**data, "seed": SEED},
            "train": {**train, "evaluate_every": EPOCHS},
            "evaluate": {"masks": {"schedule": "sizes", "sizes": [3], "per_size": 1}},
            "seeds": [SEED],
            "compute": {"device": "cpu", "threads": 1, "precision": "float64"},
        }
    )
    assert isinstance(spec, VaeExperiment)
    return spec


def data_of(spec: VaeExperiment) -> Tensor:
    return load_arrays(spec.data, SEED, torch.Generator().manual_seed(SEED)).x.double()


def final(spec: VaeExperiment, series: str) -> float:
    """Return the value of the last point of a series."""
    points = [r for r in run(spec) if isinstance(r, Point) and r.series == series]
    value = points[-1].value
    assert value is not None
    return value


def closed_form(x: Tensor) -> float:
    """Return the maximum over loadings and mean of PPCA's mean log density, for fixed noise."""
    values = torch.linalg.eigvalsh(torch.cov(x.mT, correction=0)).flip(0)
    noise = torch.full_like(values, 1 / PRECISION)
    model = torch.where(torch.arange(len(values)) < K, torch.maximum(values, noise), noise)
    best: float = -0.5 * ((2 * math.pi * model).log() + values / model).sum().item()
    return best


def by_quadrature(x: Tensor, parameters: Tensor) -> Tensor:
    """Return the mean log p(x) of binary data by a Gauss-Hermite grid, for loadings and biases
    (D, K + 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    z = torch.cartesian_prod(*[torch.from_numpy(nodes)] * K)
    shares = torch.cartesian_prod(*[torch.from_numpy(weights / weights.sum())] * K).log().sum(-1)
    outputs = z @ parameters[:, :K].mT + parameters[:, K]  # (G, D)
    each = x @ outputs.mT - torch.nn.functional.softplus(outputs).sum(-1)  # (N, G)
    found: Tensor = (each + shares).logsumexp(-1).mean()
    return found


def by_lbfgs(x: Tensor, start: int) -> float:
    """Return a maximum of the quadrature by L-BFGS from random loadings."""
    shape = (x.shape[1], K + 1)

    def descent(flat: Any) -> tuple[float, Any]:
        parameters = torch.from_numpy(flat).view(shape).requires_grad_()
        loss = -by_quadrature(x, parameters)
        (gradient,) = torch.autograd.grad(loss, parameters)
        return loss.item(), gradient.numpy().ravel()

    first = 0.1 * np.random.default_rng(start).standard_normal(shape[0] * shape[1])
    found = minimize(descent, first, jac=True, method="L-BFGS-B")
    return -float(found.fun)


def main() -> None:
    torch.set_num_threads(1)
    losses, weights, fallen = language_model(STEPS)
    print(
        f"{STEPS} steps of a BERT: losses differ by at most {losses:.1e}, weights by {weights:.1e}"
    )
    print(f"  the loss fell by {fallen:.2f} nats a token", flush=True)
    ppca = {"source": "ppca", "n": N, "dim": DIM, "latent_dim": K, "noise_precision": PRECISION}
    gaussian = {"distribution": "gaussian", "noise_precision": PRECISION}
    for objective in ("lml", "elbo"):
        spec = linear_vae(objective, ppca, gaussian, 40)
        found, best = final(spec, "lml"), closed_form(data_of(spec))
        print(
            f"linear Gaussian VAE by {objective}: LML {found:.4f}, maximum {best:.4f}", flush=True
        )
    digits = {"source": "digits", "binarize": "threshold"}
    spec = linear_vae("lml", digits, {"distribution": "bernoulli"}, NODES)
    best = max(by_lbfgs(data_of(spec), start) for start in range(3))
    print(f"linear Bernoulli VAE of digits: {-final(spec, 'loss'):.4f}, by L-BFGS {best:.4f}")


if __name__ == "__main__":
    main()
