"""Training steps by importance against quadrature: the mean gradient of a step beside the gradient
of the true score, and the true score where training ends beside the one that exact steps reach.
The truth is a sum over a fine grid of two latent dimensions, written here.
"""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.calibration.vae import random_vae, simulated
from mptcore.families.vae.likelihoods import GaussianLikelihood
from mptcore.families.vae.networks import dense
from mptcore.families.vae.sampled import SampledVae
from mptcore.specs import Dense

DIM, N, NODES, EXTENT, PRECISION = 8, 12, 140, 6.0, 20.0


def small_decoder() -> tuple[SampledVae, Tensor]:
    """Return a tanh decoder that is not the one its data are drawn from, and the data (N, D)."""
    networks = dense(Dense(layers="dense", widths=(8,), activation="tanh"), DIM, 2)
    vae = random_vae(GaussianLikelihood(PRECISION), networks, 2)
    x = simulated(vae, N)
    with torch.no_grad():
        for parameter in vae.decoder.parameters():
            parameter.mul_(0.8)
    return vae, x


def masks_of(size: int, count: int, seed: int = 0) -> Tensor:
    order = torch.rand(count, DIM, generator=torch.Generator().manual_seed(seed))
    return order.argsort(-1).argsort(-1) < size


def true_score(vae: SampledVae, x: Tensor, masks: Tensor) -> Tensor:
    """Return the score by quadrature, differentiably."""
    places = torch.linspace(-EXTENT, EXTENT, NODES, dtype=torch.float64)
    z = torch.cartesian_prod(places, places)
    gaps = x[:, None] - vae.decoder(z)  # (N, G, D)
    each = 0.5 * math.log(PRECISION / (2 * math.pi)) - 0.5 * PRECISION * gaps.square()
    prior = -z.square().sum(-1) / 2
    scores = []
    for mask in masks:
        weights = prior + (each * ~mask).sum(-1)  # (N, G)
        joint = (weights[..., None] + each[..., mask]).logsumexp(1)
        scores.append((joint - weights.logsumexp(1)[:, None]).mean())
    return torch.stack(scores).mean()


def gradient(vae: SampledVae, score: Tensor) -> Tensor:
    return torch.cat(
        [part.flatten() for part in torch.autograd.grad(score, list(vae.decoder.parameters()))]
    )


def mean_gradient(vae: SampledVae, x: Tensor, masks: Tensor, steps: int) -> tuple[Tensor, float]:
    """Return the mean gradient of several steps, and the standard error of its norm."""
    found = torch.stack(
        [
            gradient(vae, vae.score(x, masks, torch.Generator().manual_seed(step)))
            for step in range(steps)
        ]
    )
    return found.mean(0), (found.var(0).sum() / steps).sqrt().item()


def trained(vae: SampledVae, score: Callable[[SampledVae, int], Tensor], steps: int) -> SampledVae:
    """Return a copy whose decoder has ascended a score by Adam."""
    own = copy.deepcopy(vae)
    adam = torch.optim.Adam(own.decoder.parameters(), lr=0.02)
    for step in range(steps):
        adam.zero_grad()
        (-score(own, step)).backward()  # type: ignore[no-untyped-call]
        adam.step()
    return own


def main() -> None:
    torch.set_num_threads(1)
    vae, x = small_decoder()
    for size in (3, 6, 8):
        masks = masks_of(size, 4)
        truth = gradient(vae, true_score(vae, x, masks))
        for draws in (10, 30):
            vae.conditionals = vae.conditionals.model_copy(update={"train_draws": draws})
            found, error = mean_gradient(vae, x, masks, 60)
            off, scale = (found - truth).norm().item(), truth.norm().item()
            cosine = torch.cosine_similarity(found, truth, 0).item()
            print(
                f"{size} of {DIM} masked, {draws} draws: mean gradient off by {off / scale:.3f} "
                f"(noise {error / scale:.3f}) of its norm, cosine {cosine:.3f}",
                flush=True,
            )
    vae.conditionals = vae.conditionals.model_copy(update={"train_draws": 10})
    for size in (3, 6):
        masks = masks_of(size, 4)

        def sampled(own: SampledVae, step: int, masks: Tensor = masks) -> Tensor:
            return own.score(x, masks, torch.Generator().manual_seed(step))

        def exact(own: SampledVae, step: int, masks: Tensor = masks) -> Tensor:
            return true_score(own, x, masks)

        ends = {"sampled": trained(vae, sampled, 200), "exact": trained(vae, exact, 200)}
        values = {name: DIM * true_score(end, x, masks).item() for name, end in ends.items()}
        before = DIM * true_score(vae, x, masks).item()
        print(f"{size} of {DIM} masked: D · S from {before:.2f} to {values}", flush=True)


if __name__ == "__main__":
    main()
