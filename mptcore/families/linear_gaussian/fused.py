"""Scores of masks by compiled loops on a CPU, for moments of low rank. Torch computes the rest."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mptcore.families.linear_gaussian.moments import FactoredMoment, Moment
from mptcore.runtime.compiled import in_threads, kernels

KERNELS = "mptcore.families.linear_gaussian.kernels"
MAX_LATENT_DIM = 32
MAX_TABLE = 2**21
"""Maximum number of products in a table. Torch is faster beyond: it reads a table once for many
masks."""
MIN_PART = 64
"""Minimum number of masks that are worth a thread."""
WIDTH = 64
"""Approximate number of dimensions whose products are read together."""

Doubles = NDArray[np.float64]


class FusedScores:
    """Tables of a model and its data for `kernels.moment_scores`."""

    def __init__(self, loadings: Tensor, noise_variance: Tensor, moment: FactoredMoment):
        self.latent_dim = loadings.shape[1]
        deviation = noise_variance.sqrt()[:, None]
        loadings, factor = loadings / deviation, moment.factor / deviation
        upper, lower = torch.triu_indices(self.latent_dim, self.latent_dim)
        outer = loadings[:, upper] * loadings[:, lower]
        mixed = (loadings[:, :, None] * factor[:, None, :]).flatten(1)
        self.rows = torch.cat([outer, mixed], 1).numpy()  # (D, T)
        self.total = self.rows.sum(0)  # (T,)
        self.blocks = _in_blocks(self.rows)  # (blocks, T, width)
        self.diagonal = _in_blocks((moment.diagonal / noise_variance).numpy())  # (blocks, width)
        self.log_noise = _in_blocks(noise_variance.log().numpy())  # (blocks, width)

    @property
    def bytes_per_mask(self) -> int:
        """Memory of a mask, of the numbers it is drawn from and of its score."""
        return 6 * len(self.rows) + 8

    def scores(self, masked: Tensor) -> Tensor:  # (B, D) to (B,)
        compiled = kernels(KERNELS)
        assert compiled is not None
        rows, found = masked.contiguous().numpy(), np.empty(len(masked))
        tables = self.rows, self.blocks, self.total, self.diagonal, self.log_noise

        def part(first: int, end: int) -> None:
            compiled.moment_scores(*tables, self.latent_dim, rows[first:end], found[first:end])

        in_threads(part, len(rows), MIN_PART)
        return torch.from_numpy(found)


def few_products(loadings: Tensor, moment: FactoredMoment) -> bool:
    """Return whether compiled loops are faster than torch for loadings (…, D, K)."""
    dim, latent_dim = loadings.shape[-2:]
    products = dim * latent_dim * (latent_dim + 1 + 2 * moment.factor.shape[-1]) // 2
    return latent_dim <= MAX_LATENT_DIM and products <= MAX_TABLE


def fused_scores(
    loadings: Tensor,  # (D, K)
    noise_variance: Tensor,  # (D,)
    moment: Moment,
) -> FusedScores | None:
    """Return the tables of a model if compiled loops can score it and are faster."""
    if not isinstance(moment, FactoredMoment) or loadings.device.type != "cpu":
        return None
    if loadings.requires_grad or not few_products(loadings, moment):
        return None
    if kernels(KERNELS) is None:
        return None
    return FusedScores(loadings, noise_variance, moment)


def _in_blocks(table: Doubles) -> Doubles:
    """Cut a table (D, …) into blocks of equal width, a multiple of 8, filled up with zeros:
    (blocks, …, width)."""
    dim = len(table)
    blocks = max(1, round(dim / WIDTH))
    width = -(-dim // (8 * blocks)) * 8
    padded = np.zeros((blocks * width, *table.shape[1:]))
    padded[:dim] = table
    return np.ascontiguousarray(np.moveaxis(padded.reshape(blocks, width, *table.shape[1:]), 1, -1))
