"""Scores of masks by compiled loops on a CPU, from the data's moment. Torch computes the rest."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mptcore.runtime.compiled import kernels, parallel_ranges

KERNELS = "mptcore.families.linear_gaussian.kernels.low_rank"
DENSE_KERNELS = "mptcore.families.linear_gaussian.kernels.dense"
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
class KernelTables:
    """Tables of a model and its data for the compiled `moment_scores` of a module."""

    module: str
    arguments: tuple[Doubles | int, ...]
    """All arguments before the masks."""

    def scores(self, masked: Tensor) -> Tensor:  # (B, D) to (B,)
        compiled = kernels(self.module)
        assert compiled is not None
        rows, scores = masked.contiguous().numpy(), np.empty(len(masked))

        def part(first: int, end: int) -> None:
            compiled.moment_scores(*self.arguments, rows[first:end], scores[first:end])

        parallel_ranges(part, len(rows), MIN_PART)
        return torch.from_numpy(scores)


def bytes_per_mask(dim: int) -> int:
    """Return the memory of a mask, of the numbers it is drawn from and of its score."""
    return 6 * dim + 8


def efficient_batch(dim: int, products_per_mask: int) -> int:
    """Return the minimum number of masks to score together."""
    return max(1, min(BATCH_PRODUCTS // products_per_mask, BATCH_BYTES // bytes_per_mask(dim)))


def products(loadings: Tensor, factor: Tensor) -> int:
    """Return the number of products in a table for loadings (…, D, K) and a factor (…, D, Q)."""
    dim, latent_dim = loadings.shape[-2:]
    return dim * latent_dim * (latent_dim + 1 + 2 * factor.shape[-1]) // 2


def fits_factored(loadings: Tensor, factor: Tensor) -> bool:
    """Return whether compiled loops can score a model of a factored moment, and are faster."""
    return _fits(loadings, KERNELS) and products(loadings, factor) <= MAX_TABLE


def fits_dense(loadings: Tensor) -> bool:
    """Return whether compiled loops can score a model of a dense moment, and are faster."""
    return _fits(loadings, DENSE_KERNELS) and len(loadings) <= MAX_DENSE_DIM


def _fits(loadings: Tensor, module: str) -> bool:
    """Return whether compiled loops can score one model with loadings (D, K)."""
    is_one_on_cpu = loadings.dim() == 2 and loadings.device.type == "cpu"
    is_small = loadings.shape[-1] <= MAX_LATENT_DIM and not loadings.requires_grad
    return is_one_on_cpu and is_small and kernels(module) is not None


def factored(
    loadings: Tensor,  # (D, K)
    noise_variance: Tensor,  # (D,)
    factor: Tensor,  # (D, Q)
    diagonal: Tensor,  # (D,)
) -> KernelTables:
    """Return the tables of a model and its moment of low rank."""
    deviation = noise_variance.sqrt()[:, None]
    scaled, factor = loadings / deviation, factor / deviation
    mixed = (scaled[:, :, None] * factor[:, None, :]).flatten(1)
    rows = torch.cat([_squares(scaled), mixed], 1).numpy()  # (D, T)
    of_rows = rows, _in_blocks(rows), rows.sum(0)
    ends = _ends(noise_variance, diagonal)
    return KernelTables(KERNELS, (*of_rows, *ends, loadings.shape[1]))


def dense(
    loadings: Tensor,  # (D, K)
    noise_variance: Tensor,  # (D,)
    matrix: Tensor,  # (D, D)
) -> KernelTables:
    """Return the tables of a model and its moment of any rank."""
    deviation = noise_variance.sqrt()[:, None]
    scaled, ratios = loadings / deviation, matrix / (deviation * deviation.mT)
    rows = _squares(scaled).numpy()
    of_dimensions = (scaled, ratios, ratios @ scaled)
    blocks = [_in_blocks(table.numpy()) for table in of_dimensions]
    of_rows = rows, _in_blocks(rows), rows.sum(0), scaled.contiguous().numpy()
    ends = _ends(noise_variance, matrix.diagonal())
    return KernelTables(DENSE_KERNELS, (*of_rows, *blocks, *ends))


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
