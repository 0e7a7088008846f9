"""Compiled loops that score masks by moments of low rank, each mask in the processor's caches.

They use the sums and terms of `blocks`. If few dimensions are masked, only their terms are
computed; else those of all.

Threads share no sum, and a mask's numbers are added in one fixed order. So scores do not depend on
the number of threads or on the other masks.
"""

import math

import numpy as np
from numpy.typing import NDArray

from mptcore.families.linear_gaussian.kernels.blocks import (
    LANES,
    Bools,
    Doubles,
    add_squares,
    begin_block,
    misfit,
    solve,
    sum_observed,
    sum_of_logs,
)
from mptcore.runtime.compiled import inlined, kernel

FEW = 4
"""Part of the dimensions, 1 / FEW, up to which masked dimensions are computed one by one. With more
it is quicker to compute all dimensions of a block, masked or not. At least 2: `sum_observed` lists
the masked dimensions of at most half."""


@inlined("reassoc")
def misfit_of_few(
    rows: Doubles,  # (D, T)
    variances: Doubles,  # (T,), factors of a row in v_j
    terms: Doubles,  # (T,), those in e_j
    diagonal: Doubles,  # (D,)
    log_noise: Doubles,  # (D,)
    indices: NDArray[np.int64],  # (size,), the masked dimensions
    variance: Doubles,  # (at least size + 7,), overwritten
    product: Doubles,  # (8,), overwritten
) -> float:
    """Sum log v_j + e_j / v_j over masked dimensions, one by one."""
    total, count = 0.0, len(indices)
    for i in range(count):
        j = indices[i]
        row = rows[j]
        v, e = 1.0, diagonal[j]
        for t in range(len(row)):
            v += variances[t] * row[t]
            e += terms[t] * row[t]
        variance[i] = v
        total += e / v + log_noise[j]
    filled = variance[: -(-count // 8) * 8]
    for i in range(count, len(filled)):
        filled[i] = 1.0
    return total + sum_of_logs(filled, product)


@kernel("void(f8[:,::1], f8[:,:,::1], f8[::1], f8[:,::1], f8[:,::1], i8, b1[:,::1], f8[::1])")
def moment_scores(
    rows: Doubles,  # (D, T)
    blocks: Doubles,  # (blocks, T, width), the same by dimension; zero beyond D
    total: Doubles,  # (T,)
    diagonal: Doubles,  # (blocks, width), C_jj / psi_j
    log_noise: Doubles,  # (blocks, width)
    latent_dim: int,
    masked: Bools,  # (B, D)
    scores: Doubles,  # (B,), output
) -> None:
    """Write the score of each mask."""
    dim, table = rows.shape
    square = latent_dim * (latent_dim + 1) // 2
    rank = (table - square) // latent_dim
    tables, of_masks = np.empty((3, table, LANES)), np.zeros((2, LANES, table))
    sums, terms, variances = tables[0], tables[1], tables[2]
    mask_terms, mask_variances = of_masks[0], of_masks[1]
    work, gain = np.empty((2, latent_dim, latent_dim, LANES)), np.empty((latent_dim, rank, LANES))
    width = blocks.shape[2]
    pairs, product = np.empty((3, 2, width)), np.empty(8)
    variance, residual, weight = pairs[0], pairs[1], pairs[2]
    scratch = np.empty(dim + 8)
    indices, sizes = np.empty((LANES, dim + 1), np.int64), np.empty(LANES, np.int64)
    misfits, large = np.empty(LANES), np.empty(LANES + 1, np.int64)
    flat = diagonal.reshape(-1), log_noise.reshape(-1)
    for first in range(0, len(masked), LANES):
        for b in range(LANES):
            index = min(first + b, len(masked) - 1)
            sizes[b] = sum_observed(rows, total, masked[index], indices[b], mask_terms[b])
            for t in range(table):
                sums[t, b] = mask_terms[b, t]
        solve(sums, latent_dim, work, gain, terms, variances)
        for b in range(LANES):
            for t in range(table):
                mask_terms[b, t] = terms[t, b]
            for t in range(square):  # the rest remains zero
                mask_variances[b, t] = variances[t, b]
        count, lanes = 0, min(LANES, len(masked) - first)
        for b in range(lanes):
            if FEW * sizes[b] <= dim:
                misfits[b] = misfit_of_few(
                    rows, mask_variances[b], mask_terms[b], flat[0], flat[1],
                    indices[b, : sizes[b]], scratch, product,
                )  # fmt: skip
            else:
                misfits[b], large[count] = 0.0, b
                count += 1
        large[count] = large[count - 1]  # if their number is odd, the last has itself as its pair
        for even in range(0, count, 2):
            for k in range(len(blocks)):
                for i in range(2):
                    b = large[even + i]
                    hidden = masked[first + b, k * width : min(dim, (k + 1) * width)]
                    begin_block(diagonal[k], hidden, variance[i], residual[i], weight[i])
                    add_squares(
                        mask_variances[b],
                        mask_terms[b],
                        square,
                        blocks[k],
                        variance[i],
                        residual[i],
                    )
                # each product is read once for two masks
                add_squares(
                    mask_terms[large[even]][square:], mask_terms[large[even + 1]][square:],
                    table - square, blocks[k][square:], residual[0], residual[1],
                )  # fmt: skip
                for i in range(min(2, count - even)):
                    misfits[large[even + i]] += misfit(
                        variance[i], residual[i], log_noise[k], weight[i], product
                    )
        for b in range(lanes):
            scores[first + b] = -0.5 * (math.log(2 * math.pi) + misfits[b] / sizes[b])
