"""Starts for the fit of a proposal that are drawn from the prior."""

import torch
from torch import Tensor

from mptcore.families.vae.networks import draw_normal
from mptcore.families.vae.proposal import Fit

PRIOR_DRAWS, LIKELIEST = 256, 16
"""Number of draws from the prior for each start, and number of the likeliest of them from which the
start is chosen."""
WIDER = 2.0
"""Factor on the draws for every second start, for modes in the prior's tails."""

SURPRISE = 20.0
"""Maximum nats by which a masked value may be less likely, at the heaviest mode, than the mean
there. A value beyond it may come from another mode, which has hardly any mass given the observed
part."""


@torch.no_grad()
def likely_starts(fit: Fit, latent_dim: int, count: int, generator: torch.Generator) -> Tensor:
    """Return starts, (count, N, K). The first is the likeliest of some draws from the prior. For
    each further start, new draws are made, and of the LIKELIEST of them the one farthest from the
    earlier starts is chosen. So two modes are both found if each has some of the likeliest
    draws."""
    chosen: list[Tensor] = []
    draws = draw_normal((count, PRIOR_DRAWS, latent_dim), fit.x, generator)
    draws[1::2] *= WIDER
    for z in draws:
        log_probs = fit.likelihood.node_log_probs(fit.x, fit.decoder(z), fit.observed)  # (N, G)
        likeliest = z[log_probs.topk(LIKELIEST, -1).indices]  # (N, LIKELIEST, K)
        if not chosen:
            chosen.append(likeliest[:, 0])
            continue
        gaps = torch.stack([(likeliest - one[:, None]).norm(dim=-1) for one in chosen]).amin(0)
        chosen.append(likeliest[torch.arange(len(gaps), device=gaps.device), gaps.argmax(-1)])
    return torch.stack(chosen) if chosen else fit.x.new_zeros(0, len(fit.x), latent_dim)


@torch.no_grad()
def surprised(fit: Fit, mask: Tensor, z: Tensor) -> Tensor:
    """Return which observations (N,) have a masked value that is far less likely given z (N, K)
    than the mean there. `mask` is (D,)."""
    outputs = fit.decoder(z)
    expected = fit.likelihood.log_prob(fit.likelihood.mean(outputs), outputs)
    gaps = expected - fit.likelihood.log_prob(fit.x, outputs)
    return (mask & (gaps > SURPRISE)).any(-1)
