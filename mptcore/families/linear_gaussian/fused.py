"""Scores of masks by compiled loops on a CPU, from the data's moment. Torch computes the rest."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mptcore.families.linear_gaussian.moments import DenseMoment, FactoredMoment, Moment
from mptcore.runtime.compiled import in_threads, kernels

KERNELS = "mptcore.families.linear_gaussian.kernels"
DENSE_KERNELS = "mptcore.families.linear_gaussian.dense_kernels"
MAX_LATENT_DIM = 32
MAX_TABLE = 2**21
"""Maximum number of products in a table. Torch is faster beyond: it reads a table once for many
masks."""
MIN_PART = 64
"""Minimum number of masks that are worth a thread."""
WIDTH = 256
"""Approximate number of dimensions whose products are read together."""
BATCH_PRODUCTS = 2**28
"""Number of products that are worth a batch of masks: some 30 ms of two cores. Between batches
these are partly idle."""
BATCH_BYTES = 2**25
"""Maximum memory of such a batch."""
MAX_DENSE_DIM = 4096
"""Maximum number of dimensions of a moment of full rank, because its D² numbers are copied."""

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class FusedScores:
    """Tables of a model and its data for the compiled `moment_scores` of a module."""

    module: str
    tables: tuple[Doubles | int, ...]
    """All arguments before the masks."""
    dim: int
    products_per_mask: int

    @property
    def least_batch(self) -> int:
        """Minimum number of masks to score together."""
        most = BATCH_BYTES // self.bytes_per_mask
        return max(1, min(BATCH_PRODUCTS // self.products_per_mask, most))

    @property
    def bytes_per_mask(self) -> int:
        return bytes_per_mask(self.dim)

    def scores(self, masked: Tensor) -> Tensor:  # (B, D) to (B,)
        compiled = kernels(self.module)
        assert compiled is not None
        rows, found = masked.contiguous().numpy(), np.empty(len(masked))

        def part(first: int, end: int) -> None:
            compiled.moment_scores(*self.tables, rows[first:end], found[first:end])

        in_threads(part, len(rows), MIN_PART)
        return torch.from_numpy(found)


def bytes_per_mask(dim: int) -> int:
    """Return the memory of a mask, of the numbers it is drawn from and of its score."""
    return 6 * dim + 8


def few_products(loadings: Tensor, moment: FactoredMoment, most: int = MAX_TABLE) -> bool:
    """Return whether compiled loops are faster than torch for loadings (…, D, K)."""
    dim, latent_dim = loadings.shape[-2:]
    products = dim * latent_dim * (latent_dim + 1 + 2 * moment.factor.shape[-1]) // 2
    return latent_dim <= MAX_LATENT_DIM and products <= most


def can_fuse(loadings: Tensor, moment: Moment) -> bool:
    """Return whether compiled loops can score a model with loadings (D, K), and are faster."""
    if loadings.device.type != "cpu" or kernels(KERNELS) is None:
        return False
    match moment:
        case FactoredMoment():
            return few_products(loadings, moment)
        case DenseMoment():
            dim, latent_dim = loadings.shape
            return latent_dim <= MAX_LATENT_DIM and dim <= MAX_DENSE_DIM


def fused_scores(
    loadings: Tensor,  # (D, K)
    noise_variance: Tensor,  # (D,)
    moment: Moment,
) -> FusedScores | None:
    """Return the tables of a model if compiled loops can score it and are faster."""
    if not can_fuse(loadings, moment):
        return None
    match moment:
        case FactoredMoment():
            return _by_factor(loadings, noise_variance, moment)
        case DenseMoment():
            return _by_matrix(loadings, noise_variance, moment)


def _by_factor(loadings: Tensor, noise_variance: Tensor, moment: FactoredMoment) -> FusedScores:
    deviation = noise_variance.sqrt()[:, None]
    scaled, factor = loadings / deviation, moment.factor / deviation
    mixed = (scaled[:, :, None] * factor[:, None, :]).flatten(1)
    rows = torch.cat([_squares(scaled), mixed], 1).numpy()  # (D, T)
    products = rows, _in_blocks(rows), rows.sum(0)
    ends = _ends(noise_variance, moment.diagonal)
    return FusedScores(KERNELS, (*products, *ends, loadings.shape[1]), len(rows), rows.size)


def _by_matrix(loadings: Tensor, noise_variance: Tensor, moment: DenseMoment) -> FusedScores:
    dim, latent_dim = loadings.shape
    deviation = noise_variance.sqrt()[:, None]
    scaled, matrix = loadings / deviation, moment.matrix / (deviation * deviation.mT)
    rows = _squares(scaled).numpy()
    of_dimensions = (scaled, matrix, matrix @ scaled)
    blocks = [_in_blocks(table.numpy()) for table in of_dimensions]
    products = rows, _in_blocks(rows), rows.sum(0), scaled.contiguous().numpy()
    ends = _ends(noise_variance, moment.diagonal)
    return FusedScores(DENSE_KERNELS, (*products, *blocks, *ends), dim, latent_dim * dim**2)


def _ends(noise_variance: Tensor, diagonal: Tensor) -> tuple[Doubles, Doubles]:
    """Return C_jj / psi_j and log psi_j in blocks."""
    ratio, log_noise = (diagonal / noise_variance).numpy(), noise_variance.log().numpy()
    return _in_blocks(ratio), _in_blocks(log_noise)


def _squares(scaled: Tensor) -> Tensor:
    """Return the upper triangles of w_j w_jᵀ, (D, K (K + 1) / 2)."""
    upper, lower = torch.triu_indices(scaled.shape[1], scaled.shape[1])
    return scaled[:, upper] * scaled[:, lower]


def _in_blocks(table: Doubles) -> Doubles:
    """Cut a table (D, …) into blocks of equal width, a multiple of 8, filled up with zeros:
    (blocks, …, width)."""
    dim = len(table)
    blocks = max(1, round(dim / WIDTH))
    width = -(-dim // (8 * blocks)) * 8
    padded = np.zeros((blocks * width, *table.shape[1:]))
    padded[:dim] = table
    return np.ascontiguousarray(np.moveaxis(padded.reshape(blocks, width, *table.shape[1:]), 1, -1))
