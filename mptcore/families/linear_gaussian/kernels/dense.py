"""Compiled loops that score masks by moments of full rank, from the smaller side of each mask.

In units of each dimension's noise as in `blocks`, with C the moment, R the observed and M
the masked dimensions, Σ = A_R⁻¹ and
    B = Σ_i∈R w_i C[i, :]                       (K, D)
    G = Σ_j∈R B[:, j] w_jᵀ                      (K, K)
the terms of j are
    v_j / psi_j = 1 + ⟨Σ, w_j w_jᵀ⟩,
    e_j / psi_j = C_jj / psi_j − 2 w_jᵀ Σ B[:, j] + ⟨Σ G Σ, w_j w_jᵀ⟩.
Where M is the smaller side, B is the sum over all dimensions minus that over M. This takes a
quarter of the operations of a matrix product with C, over masks of all sizes.
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
    inverse,
    misfit,
    sum_observed,
)
from mptcore.runtime.compiled import inlined, kernel


@inlined("reassoc")
def cross_products(
    loadings: Doubles,  # (D, K)
    moment: Doubles,  # (D, width), columns of C
    indices: NDArray[np.int64],  # (D,), the smaller side first
    count: int,
    cross: Doubles,  # (K, width), output
) -> None:
    """Sum w_i C[i, :] over the first `count` indices."""
    latent_dim, width = cross.shape
    for a in range(latent_dim):
        for j in range(width):
            cross[a, j] = 0.0
    unrolled = count - count % 4
    for i in range(0, unrolled, 4):
        c0, c1 = moment[indices[i]], moment[indices[i + 1]]
        c2, c3 = moment[indices[i + 2]], moment[indices[i + 3]]
        w0, w1 = loadings[indices[i]], loadings[indices[i + 1]]
        w2, w3 = loadings[indices[i + 2]], loadings[indices[i + 3]]
        for a in range(0, latent_dim - 1, 2):  # each value of C is read once for two sums
            even, odd = cross[a], cross[a + 1]
            u0, u1, u2, u3 = w0[a], w1[a], w2[a], w3[a]
            v0, v1, v2, v3 = w0[a + 1], w1[a + 1], w2[a + 1], w3[a + 1]
            for j in range(width):
                even[j] += (u0 * c0[j] + u1 * c1[j]) + (u2 * c2[j] + u3 * c3[j])
                odd[j] += (v0 * c0[j] + v1 * c1[j]) + (v2 * c2[j] + v3 * c3[j])
        if latent_dim % 2:
            last = latent_dim - 1
            u0, u1, u2, u3 = w0[last], w1[last], w2[last], w3[last]
            for j in range(width):
                cross[last, j] += (u0 * c0[j] + u1 * c1[j]) + (u2 * c2[j] + u3 * c3[j])
    for i in range(unrolled, count):
        c0, w0 = moment[indices[i]], loadings[indices[i]]
        for a in range(latent_dim):
            for j in range(width):
                cross[a, j] += w0[a] * c0[j]


@inlined("reassoc")
def add_moment(
    cross: Doubles,  # (K, width), B
    loadings_t: Doubles,  # (K, width), w_j
    hidden: Bools,  # at most width
    observed: Doubles,  # (width,), overwritten
    latent_moment: Doubles,  # (K, K), added to: G, lower triangle
) -> None:
    """Add the products of a block's observed dimensions."""
    latent_dim = len(cross)
    for a in range(latent_dim):
        for j in range(len(hidden)):
            observed[j] = 0.0 if hidden[j] else cross[a, j]
        for c in range(a + 1):
            total = 0.0
            for j in range(len(hidden)):
                total += observed[j] * loadings_t[c, j]
            latent_moment[a, c] += total


@inlined()
def quadratic_factors(
    posterior: Doubles,  # (K, K)
    latent_moment: Doubles,  # (K, K), lower triangle; the rest is overwritten
    work: Doubles,  # (2, K, K), overwritten
    terms: Doubles,  # (T,), output
    variances: Doubles,  # (T,), output
) -> None:
    """Write the factors of w_j w_jᵀ, upper triangle, in e_j and in v_j."""
    latent_dim = len(latent_moment)
    half, quadratic = work[0], work[1]
    for a in range(latent_dim):
        for c in range(a):
            latent_moment[c, a] = latent_moment[a, c]
        for c in range(latent_dim):
            half[a, c] = quadratic[a, c] = 0.0
    for a in range(latent_dim):
        for k in range(latent_dim):
            for c in range(latent_dim):
                half[a, c] += posterior[a, k] * latent_moment[k, c]
    for a in range(latent_dim):
        for k in range(latent_dim):
            for c in range(latent_dim):
                quadratic[a, c] += half[a, k] * posterior[k, c]
    t = 0
    for a in range(latent_dim):
        for c in range(a, latent_dim):
            twice = 1.0 if a == c else 2.0
            terms[t] = twice * quadratic[a, c]
            variances[t] = twice * posterior[a, c]
            t += 1


@inlined("reassoc")
def add_gain(
    posterior: Doubles,  # (K, K)
    loadings_t: Doubles,  # (K, width), w_j
    cross: Doubles,  # (K, width), B
    gain: Doubles,  # (width,), overwritten
    residual: Doubles,  # (width,), added to
) -> None:
    """Add −2 w_jᵀ Σ B[:, j]."""
    latent_dim, width = cross.shape
    for a in range(latent_dim):
        for j in range(width):
            gain[j] = 0.0
        for c in range(latent_dim):
            factor = -2 * posterior[a, c]
            for j in range(width):
                gain[j] += factor * loadings_t[c, j]
        for j in range(width):
            residual[j] += gain[j] * cross[a, j]


@kernel(
    "void(f8[:,::1], f8[:,:,::1], f8[::1], f8[:,::1], f8[:,:,::1], f8[:,:,::1], f8[:,:,::1], "
    "f8[:,::1], f8[:,::1], b1[:,::1], f8[::1])"
)
def moment_scores(
    rows: Doubles,  # (D, T), upper triangles of w_j w_jᵀ
    blocks: Doubles,  # (blocks, T, width), the same by dimension; zero beyond D
    total: Doubles,  # (T,)
    loadings: Doubles,  # (D, K), w_j
    loadings_t: Doubles,  # (blocks, K, width), the same by dimension
    moment: Doubles,  # (blocks, D, width), columns of C
    total_cross: Doubles,  # (blocks, K, width), Σ_i w_i C[i, :] over all i
    diagonal: Doubles,  # (blocks, width), C_jj
    log_noise: Doubles,  # (blocks, width)
    masked: Bools,  # (B, D)
    scores: Doubles,  # (B,), output
) -> None:
    """Write the score of each mask."""
    dim, latent_dim = loadings.shape
    products, width = rows.shape[1], blocks.shape[2]
    sums, terms, variances = np.empty(products), np.empty(products), np.empty(products)
    information = np.empty((latent_dim, latent_dim, LANES))
    posteriors = np.empty((latent_dim, latent_dim, LANES))
    cross = np.empty((LANES, len(blocks), latent_dim, width))
    latent_moments = np.empty((LANES, latent_dim, latent_dim))
    work, posterior = np.empty((2, latent_dim, latent_dim)), np.empty((latent_dim, latent_dim))
    indices, sizes = np.empty((LANES, dim + 1), np.int64), np.empty(LANES, np.int64)
    variance, residual, product = np.empty(width), np.empty(width), np.empty(8)
    weight, gain = np.empty(width), np.empty(width)
    for first in range(0, len(masked), LANES):
        lanes = min(LANES, len(masked) - first)
        for b in range(LANES):
            index = min(first + b, len(masked) - 1)
            sizes[b] = sum_observed(rows, total, masked[index], indices[b], sums)
            t = 0
            for a in range(latent_dim):
                for c in range(a, latent_dim):
                    information[c, a, b] = sums[t]
                    t += 1
                information[a, a, b] += 1.0
        inverse(information, posteriors)
        latent_moments[:] = 0.0
        for k in range(len(blocks)):  # columns of C stay in the cache for all lanes
            for b in range(lanes):
                part = cross[b, k]
                is_masked_smaller = 2 * sizes[b] <= dim
                count = sizes[b] if is_masked_smaller else dim - sizes[b]
                cross_products(loadings, moment[k], indices[b], count, part)
                if is_masked_smaller:
                    for a in range(latent_dim):
                        for j in range(width):
                            part[a, j] = total_cross[k, a, j] - part[a, j]
                hidden = masked[first + b, k * width : min(dim, (k + 1) * width)]
                add_moment(part, loadings_t[k], hidden, weight, latent_moments[b])
        for b in range(lanes):
            for a in range(latent_dim):
                for c in range(latent_dim):
                    posterior[a, c] = posteriors[a, c, b]
            quadratic_factors(posterior, latent_moments[b], work, terms, variances)
            misfits = 0.0
            for k in range(len(blocks)):
                hidden = masked[first + b, k * width : min(dim, (k + 1) * width)]
                begin_block(diagonal[k], hidden, variance, residual, weight)
                add_squares(variances, terms, products, blocks[k], variance, residual)
                add_gain(posterior, loadings_t[k], cross[b, k], gain, residual)
                misfits += misfit(variance, residual, log_noise[k], weight, product)
            scores[first + b] = -0.5 * (math.log(2 * math.pi) + misfits / sizes[b])
