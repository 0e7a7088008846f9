"""Check the scores of a grid against other grids, as its LML is checked.

On any grid the scores of all sizes sum to the LML of that grid (Eq. 5), so their agreement proves
nothing. The width of the posterior depends on the number of observed dimensions, so each size needs
its own check."""

import math
from itertools import combinations

import torch
from torch import Tensor

from mptcore.families.vae.grid import Nodes, nodes_of
from mptcore.families.vae.likelihoods import Likelihood
from mptcore.families.vae.networks import Decoder
from mptcore.runtime.out_of_memory import by_rows
from mptcore.specs.families.vae.models import AnyGrid

CHUNK_BYTES = 2**28
"""Memory for observations × nodes, and for nodes × dimensions."""
MAX_OBSERVATIONS = 256
"""Maximum number of observations of a check, evenly spaced in the data."""
MIN_MASKS, MASKS_TIMES_DIM = 2, 64
"""Minimum number of masks of a size that are checked, and their number times D for small
D."""
SAFELY = 1e8
"""Multiple of the smallest number from which a sum of shares has all its digits."""
EVERY_SIZE = 16
"""Maximum number of observed dimensions at which each size is checked. Beyond it the sizes are
checked at steps of √2 in the number of observed dimensions."""


def checked_sizes(size: int, dim: int) -> list[int]:
    """Return the sizes whose check covers `size`: itself, or those checked next to it."""
    observed = dim - size
    if observed <= EVERY_SIZE:
        return [size]
    lower = 2 ** (math.floor(2 * math.log2(observed)) / 2)
    return [dim - int(lower), dim - min(dim - 1, math.ceil(math.sqrt(2) * lower))]


@torch.no_grad()
def score_shift(
    grid: AnyGrid, decoder: Decoder, likelihood: Likelihood, x: Tensor, size: int, latent_dim: int
) -> float:
    """Return how far other grids move the score of a mask of this size, in nats: the mean of the
    absolute shift over a few masks, for the grid that moves it most. Of many observations some are
    used: the check would otherwise cost several times as much as the scores."""
    x = x[torch.linspace(0, len(x) - 1, min(len(x), MAX_OBSERVATIONS)).round().long()]
    masks = _masks(size, x.shape[1]).to(x.device)

    def scores(one: AnyGrid) -> Tensor:
        nodes = nodes_of(one, latent_dim)
        return scores_over(
            Nodes(nodes.z.to(x), nodes.log_weights.to(x)), decoder, likelihood, x, masks
        )

    own, others = scores(grid), (grid.doubled(), grid.of_another_kind())
    return torch.stack([(scores(one) - own).abs().mean() for one in others]).max().item()


def scores_over(
    nodes: Nodes, decoder: Decoder, likelihood: Likelihood, x: Tensor, masks: Tensor
) -> Tensor:
    """Return the score of each mask (B, D) over the given nodes: float64, (B,). The nodes are
    processed in parts."""
    found = []
    for mask in masks:
        (log_probs,) = by_rows(
            lambda some, mask=mask: (_conditionals(nodes, decoder, likelihood, some, mask),), x
        )
        found.append(log_probs.double().mean())
    return torch.stack(found)


def _conditionals(
    nodes: Nodes, decoder: Decoder, likelihood: Likelihood, x: Tensor, mask: Tensor
) -> Tensor:
    """Return log p(x_j | x_R) for each masked j, (N, M). A part of the nodes is left out for
    observations whose posterior has no share there. So log p(x_j | z), which may be far below the
    smallest number there, is seldom needed."""
    columns, observed = mask.nonzero().flatten(), (~mask).to(x)
    at_once = max(1, CHUNK_BYTES // (4 * max(x.shape) * x.element_size()))
    parts = [
        *zip(torch.split(nodes.z, at_once), torch.split(nodes.log_weights, at_once), strict=True)
    ]

    def joint(z: Tensor, log_weights: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of some nodes, (G, D), and log p(x_R, z_g), (N, G)."""
        outputs = decoder(z)
        return outputs, likelihood.node_log_probs(x, outputs, observed) + log_weights

    of_parts = torch.stack([joint(*part, x)[1].logsumexp(-1) for part in parts])  # (parts, N)
    rest = of_parts.logsumexp(0)  # log p(x_R)
    tiny = torch.finfo(x.dtype).tiny
    mixed = torch.zeros_like(x[:, columns])
    for part, own in zip(parts, of_parts, strict=True):
        rows = (own - rest > math.log(tiny)).nonzero().flatten()
        if len(rows) == 0:
            continue
        outputs, each = joint(*part, x[rows])
        share = (each - rest[rows, None]).exp()
        mixed[rows] += likelihood.mixed_probs(x[rows][:, columns], outputs[:, columns], share)
    found = mixed.log()
    for row in (mixed < tiny * SAFELY).any(1).nonzero().flatten().tolist():
        one = x[row : row + 1]
        logs = []
        for part in parts:
            outputs, each = joint(*part, one)
            logs.append(likelihood.mixed_log_probs(one[:, columns], outputs[:, columns], each))
        found[row] = torch.stack(logs).logsumexp(0)[0] - rest[row]
    return found


def _masks(size: int, dim: int) -> Tensor:
    """Return all masks of a size if there are few, else a fixed random choice: (B, D)."""
    count = max(MIN_MASKS, MASKS_TIMES_DIM // dim)
    if math.comb(dim, size) <= count:
        chosen = torch.tensor(list(combinations(range(dim), size)))
        return torch.zeros(len(chosen), dim, dtype=torch.bool).scatter(1, chosen, True)
    order = torch.rand(count, dim, generator=torch.Generator().manual_seed(size))
    return order.argsort(-1).argsort(-1) < size
