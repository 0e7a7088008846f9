"""Loops that the kernels of this family have in common, as parts of these.

In units of each dimension's noise, w_j and f_j are divided by psi_j^½. Then with
A_R = I + Σ_i∈R w_i w_iᵀ, Σ = A_R⁻¹ and M = Σ Σ_i∈R w_i f_iᵀ
    v_j / psi_j = 1 + ⟨Σ, w_j w_jᵀ⟩,
    e_j / psi_j = C_jj / psi_j − 2 ⟨M, w_j f_jᵀ⟩ + ⟨M Mᵀ, w_j w_jᵀ⟩.
One table has the products for the sums over R and for the terms of j: the upper triangle of
w_j w_jᵀ, then w_j f_jᵀ, T = K (K + 1) / 2 + K Q numbers for each dimension.

Rows are taken from arrays by their index (`work[0]`): rows that are unpacked (`a, b = work`) are no
contiguous arrays to numba, and loops over them take up to ten times as long. An index that may be
negative (`numbers[first + i]`) also hides the vectors from the compiler: take a slice first.
"""

import math

import numpy as np
from numpy.typing import NDArray

from mptcore.runtime.compiled import inlined

Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]

LANES = 8
"""Number of masks whose K × K matrices are inverted together, one in each lane of the processor's
vectors."""
GROUP = 32
"""Number of variances whose product cannot overflow. Sums of moments are precise enough only if
each variance is below 5e7 times its noise."""


@inlined()
def inverse(
    information: Doubles,  # (K, K, LANES), lower triangle; overwritten
    posterior: Doubles,  # (K, K, LANES), output
) -> None:
    """Write A⁻¹ = (L⁻¹)ᵀ L⁻¹ of positive definite A = L Lᵀ."""
    size = len(information)
    factor = information
    for i in range(size):
        for j in range(i + 1):
            for k in range(j):
                for b in range(LANES):
                    factor[i, j, b] -= factor[i, k, b] * factor[j, k, b]
            for b in range(LANES):
                value = factor[i, j, b]
                factor[i, j, b] = 1 / math.sqrt(value) if i == j else value * factor[j, j, b]
    for j in range(size):  # L⁻¹ in place of L, whose diagonal is inverted already
        for i in range(j + 1, size):
            for b in range(LANES):
                factor[i, j, b] *= -factor[j, j, b]
            for k in range(j + 1, i):
                for b in range(LANES):
                    factor[i, j, b] -= factor[i, k, b] * factor[k, j, b]
            for b in range(LANES):
                factor[i, j, b] *= factor[i, i, b]
    for i in range(size):
        for j in range(i + 1):
            for b in range(LANES):
                posterior[i, j, b] = factor[i, i, b] * factor[i, j, b]
            for k in range(i + 1, size):
                for b in range(LANES):
                    posterior[i, j, b] += factor[k, i, b] * factor[k, j, b]
            for b in range(LANES):
                posterior[j, i, b] = posterior[i, j, b]


@inlined()
def sum_observed(
    rows: Doubles,  # (D, T)
    total: Doubles,  # (T,)
    masked: Bools,  # (D,)
    indices: NDArray[np.int64],  # (D + 1,), output: the dimensions of the smaller side first
    sums: Doubles,  # (T,), output
) -> int:
    """Sum the products of the observed dimensions, over the smaller side of a mask: the masked ones
    if these are at most half. Return the size of the mask."""
    size = count = 0
    for j in range(len(masked)):
        size += masked[j]
    is_masked_smaller = 2 * size <= len(masked)
    if is_masked_smaller:
        for j in range(len(masked)):
            indices[count] = j
            count += masked[j]
    else:
        for j in range(len(masked)):
            indices[count] = j
            count += not masked[j]
    for t in range(len(sums)):
        sums[t] = 0.0
    unrolled = count - count % 4
    for i in range(0, unrolled, 4):
        j0, j1, j2, j3 = indices[i], indices[i + 1], indices[i + 2], indices[i + 3]
        for t in range(len(sums)):
            sums[t] += (rows[j0, t] + rows[j1, t]) + (rows[j2, t] + rows[j3, t])
    for i in range(unrolled, count):
        j0 = indices[i]
        for t in range(len(sums)):
            sums[t] += rows[j0, t]
    if is_masked_smaller:
        for t in range(len(sums)):
            sums[t] = total[t] - sums[t]
    return size


@inlined()
def solve(
    sums: Doubles,  # (T, LANES)
    latent_dim: int,
    work: Doubles,  # (2, K, K, LANES), overwritten
    gain: Doubles,  # (K, Q, LANES), output: M
    terms: Doubles,  # (T, LANES), output: factors of a dimension's products in e_j
    variances: Doubles,  # (T, LANES), output: those in v_j
) -> None:
    """Write the factors of all dimensions' products from the sums over R."""
    information, posterior = work[0], work[1]
    rank = gain.shape[1]
    square = latent_dim * (latent_dim + 1) // 2
    t = 0
    for a in range(latent_dim):
        for c in range(a, latent_dim):
            for b in range(LANES):
                information[c, a, b] = sums[t, b]
            t += 1
        for b in range(LANES):
            information[a, a, b] += 1.0
    inverse(information, posterior)
    gain[:] = 0.0
    for c in range(latent_dim):
        for q in range(rank):
            t = square + c * rank + q
            for a in range(latent_dim):
                for b in range(LANES):
                    gain[a, q, b] += posterior[a, c, b] * sums[t, b]
    t = 0
    for a in range(latent_dim):
        for c in range(a, latent_dim):
            twice = 1.0 if a == c else 2.0
            for b in range(LANES):
                variances[t, b] = twice * posterior[a, c, b]
                terms[t, b] = 0.0
            for q in range(rank):
                for b in range(LANES):
                    terms[t, b] += twice * gain[a, q, b] * gain[c, q, b]
            t += 1
    for a in range(latent_dim):
        for q in range(rank):
            for b in range(LANES):
                terms[t, b] = -2 * gain[a, q, b]
            t += 1


@inlined("reassoc")
def add_squares(
    variances: Doubles,  # (T,)
    terms: Doubles,  # (T,)
    count: int,
    block: Doubles,  # (T, width)
    variance: Doubles,  # (width,), added to
    residual: Doubles,  # (width,), added to
) -> None:
    """Add the first `count` rows of a block, each times its terms."""
    unrolled = count - count % 4
    for t in range(0, unrolled, 4):
        a0, a1, a2, a3 = variances[t], variances[t + 1], variances[t + 2], variances[t + 3]
        b0, b1, b2, b3 = terms[t], terms[t + 1], terms[t + 2], terms[t + 3]
        for j in range(block.shape[1]):
            p0, p1, p2, p3 = block[t, j], block[t + 1, j], block[t + 2, j], block[t + 3, j]
            variance[j] += (a0 * p0 + a1 * p1) + (a2 * p2 + a3 * p3)
            residual[j] += (b0 * p0 + b1 * p1) + (b2 * p2 + b3 * p3)
    t = unrolled
    if count - unrolled == 3:
        a0, a1, a2 = variances[t], variances[t + 1], variances[t + 2]
        b0, b1, b2 = terms[t], terms[t + 1], terms[t + 2]
        for j in range(block.shape[1]):
            p0, p1, p2 = block[t, j], block[t + 1, j], block[t + 2, j]
            variance[j] += (a0 * p0 + a1 * p1) + a2 * p2
            residual[j] += (b0 * p0 + b1 * p1) + b2 * p2
    if count - unrolled == 2:
        a0, a1, b0, b1 = variances[t], variances[t + 1], terms[t], terms[t + 1]
        for j in range(block.shape[1]):
            p0, p1 = block[t, j], block[t + 1, j]
            variance[j] += a0 * p0 + a1 * p1
            residual[j] += b0 * p0 + b1 * p1
    if count - unrolled == 1:
        a0, b0 = variances[t], terms[t]
        for j in range(block.shape[1]):
            p0 = block[t, j]
            variance[j] += a0 * p0
            residual[j] += b0 * p0


@inlined()
def begin_block(
    diagonal: Doubles,  # (width,)
    hidden: Bools,  # at most width
    variance: Doubles,  # (width,), output
    residual: Doubles,  # (width,), output
    weight: Doubles,  # (width,), output: 1 where masked, else 0
) -> None:
    """Write the terms of a block that depend on no mask."""
    for j in range(len(diagonal)):
        variance[j] = 1.0
        residual[j] = diagonal[j]
    for j in range(len(hidden)):
        weight[j] = hidden[j]
    for j in range(len(hidden), len(weight)):
        weight[j] = 0.0


@inlined("reassoc")
def sum_of_logs(
    variance: Doubles,  # (width,), a multiple of 8
    product: Doubles,  # (8,), overwritten
) -> float:
    """Sum the logarithms of numbers that are at least 1. A logarithm is taken of a product of 128
    of them, or of 32 if that is too large."""
    total = 0.0
    for first in range(0, len(variance), 4 * GROUP):
        for j in range(8):
            product[j] = 1.0
        for i in range(first, min(len(variance), first + 4 * GROUP), 8):
            for j in range(8):
                product[j] *= variance[i + j]
        for j in range(4):
            product[j] *= product[j + 4]
        full_product = (product[0] * product[1]) * (product[2] * product[3])
        if math.isfinite(full_product):
            total += math.log(full_product)
        else:
            for j in range(4):
                total += math.log(product[j])
    return total


@inlined("reassoc")
def misfit(
    variance: Doubles,  # (width,), a multiple of 8; overwritten
    residual: Doubles,  # (width,)
    log_noise: Doubles,  # (width,)
    weight: Doubles,  # (width,), 1 where masked, else 0
    product: Doubles,  # (8,), overwritten
) -> float:
    """Sum log v_j + e_j / v_j over masked dimensions."""
    total = 0.0
    for j in range(len(weight)):
        total += weight[j] * (residual[j] / variance[j] + log_noise[j])
        variance[j] = 1 + weight[j] * (variance[j] - 1)
    return total + sum_of_logs(variance, product)
