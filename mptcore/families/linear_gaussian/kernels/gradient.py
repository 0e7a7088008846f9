"""Loops that compute the score of masks and its gradient, as parts of `train`.

The score depends on loadings, noise and data only through the table of products in `blocks`
and C_jj / psi_j. So its derivatives go backwards through these: the factors of v_j and e_j lead to
the products of a masked dimension, and the sums over R to those of an observed one.
"""

import math
from typing import NamedTuple

import numpy as np

from mptcore.families.linear_gaussian.kernels.blocks import (
    LANES,
    Bools,
    Doubles,
    add_squares,
    solve,
    sum_of_logs,
)
from mptcore.runtime.compiled import inlined


class Space(NamedTuple):
    """Arrays that `gradient` and `log_prob` overwrite."""

    rows: Doubles  # (D, T), products of each dimension
    columns: Doubles  # (2, T, width), the same, and derivatives by them; zero from D on
    sums: Doubles  # (5, T)
    tables: Doubles  # (6, T, LANES)
    work: Doubles  # (2, K, K, LANES)
    gain: Doubles  # (K, Q, LANES)
    small: Doubles  # (3, K, K + Q, LANES)
    wide: Doubles  # (7, width), zero from D on
    lanes: Doubles  # (3, LANES, width), zero from D on
    product: Doubles  # (8,)


@inlined()
def scaled_table(
    loadings: Doubles,  # (D, K)
    noise: Doubles,  # (D,)
    factor: Doubles,  # (D, Q)
    rows: Doubles,  # (D, T), output
    total: Doubles,  # (T,), output
) -> None:
    """Write the products of each dimension in units of its noise, and their sum."""
    latent_dim, rank = loadings.shape[1], factor.shape[1]
    for t in range(len(total)):
        total[t] = 0.0
    for j in range(len(loadings)):
        t = 0
        for a in range(latent_dim):
            for c in range(a, latent_dim):
                rows[j, t] = loadings[j, a] * loadings[j, c] / noise[j]
                t += 1
        for a in range(latent_dim):
            for q in range(rank):
                rows[j, t] = loadings[j, a] * factor[j, q] / noise[j]
                t += 1
        for t in range(len(total)):
            total[t] += rows[j, t]


@inlined()
def sums_gradient(
    grad_variances: Doubles,  # (T, LANES), of which K (K + 1) / 2 count
    grad_terms: Doubles,  # (T, LANES)
    posterior: Doubles,  # (K, K, LANES)
    gain: Doubles,  # (K, Q, LANES)
    sums: Doubles,  # (T, LANES)
    work: Doubles,  # (3, K, K + Q, LANES), overwritten
    grad_sums: Doubles,  # (T, LANES), output
) -> None:
    """Write the derivatives by sums over R from those by the factors of v_j and e_j. With M = Σ L
    those by M are ∂M = 2 (BR M − R), by Σ they are ∂Σ = BV + ∂M Lᵀ, by L they are Σ ∂M, and by A
    they are −Σ ∂Σ Σ."""
    latent_dim, rank = gain.shape[0], gain.shape[1]
    grad_posterior, grad_gain, scratch = work[0], work[1], work[2]  # ∂Σ, ∂M
    t = 0
    for a in range(latent_dim):
        for c in range(a, latent_dim):
            for b in range(LANES):
                grad_posterior[a, c, b] = grad_posterior[c, a, b] = grad_variances[t, b]
                scratch[a, c, b] = scratch[c, a, b] = grad_terms[t, b]
            t += 1
    square = t
    for a in range(latent_dim):
        for q in range(rank):
            for b in range(LANES):
                grad_gain[a, q, b] = -2 * grad_terms[t, b]
            for c in range(latent_dim):
                for b in range(LANES):
                    grad_gain[a, q, b] += 2 * scratch[a, c, b] * gain[c, q, b]
            t += 1
    grad_sums[:] = 0.0
    for a in range(latent_dim):
        for c in range(latent_dim):
            for q in range(rank):
                for b in range(LANES):
                    t = square + c * rank + q
                    grad_posterior[a, c, b] += grad_gain[a, q, b] * sums[t, b]
                    grad_sums[square + a * rank + q, b] += posterior[a, c, b] * grad_gain[c, q, b]
    scratch[:] = 0.0
    for a in range(latent_dim):
        for i in range(latent_dim):
            for c in range(latent_dim):
                for b in range(LANES):
                    scratch[a, c, b] += posterior[a, i, b] * grad_posterior[i, c, b]
    t = 0
    for a in range(latent_dim):
        for c in range(a, latent_dim):
            twice = 0.5 if a == c else 1.0
            for i in range(latent_dim):
                for b in range(LANES):
                    grad_sums[t, b] -= twice * scratch[a, i, b] * posterior[i, c, b]
                    grad_sums[t, b] -= twice * scratch[c, i, b] * posterior[i, a, b]
            t += 1


@inlined("reassoc")
def add_products(
    terms: Doubles,  # (T,)
    first: int,
    block: Doubles,  # (T, width)
    residual: Doubles,  # (width,), added to
) -> None:
    """Add the rows of a block from the first on, each times its term."""
    unrolled = len(terms) - (len(terms) - first) % 8
    for t in range(first, unrolled, 8):
        a0, a1, a2, a3 = terms[t], terms[t + 1], terms[t + 2], terms[t + 3]
        a4, a5, a6, a7 = terms[t + 4], terms[t + 5], terms[t + 6], terms[t + 7]
        for j in range(block.shape[1]):
            residual[j] += (
                (a0 * block[t, j] + a1 * block[t + 1, j])
                + (a2 * block[t + 2, j] + a3 * block[t + 3, j])
            ) + (
                (a4 * block[t + 4, j] + a5 * block[t + 5, j])
                + (a6 * block[t + 6, j] + a7 * block[t + 7, j])
            )
    remaining = len(terms) - unrolled
    t = unrolled
    if remaining >= 4:
        a0, a1, a2, a3 = terms[t], terms[t + 1], terms[t + 2], terms[t + 3]
        for j in range(block.shape[1]):
            residual[j] += (a0 * block[t, j] + a1 * block[t + 1, j]) + (
                a2 * block[t + 2, j] + a3 * block[t + 3, j]
            )
        t += 4
    if remaining % 4 >= 2:
        a0, a1 = terms[t], terms[t + 1]
        for j in range(block.shape[1]):
            residual[j] += a0 * block[t, j] + a1 * block[t + 1, j]
        t += 2
    if remaining % 2 == 1:
        a0 = terms[t]
        for j in range(block.shape[1]):
            residual[j] += a0 * block[t, j]


@inlined("reassoc")
def misfit_gradient(
    variance: Doubles,  # (width,), v_j / psi_j; overwritten
    residual: Doubles,  # (width,), e_j / psi_j
    log_noise: Doubles,  # (width,)
    weight: Doubles,  # (width,), 1 where masked, else 0
    share: float,
    grad_variance: Doubles,  # (width,), output: derivatives of the score by v_j
    grad_residual: Doubles,  # (width,), output: by e_j
    grad_diagonal: Doubles,  # (width,), added to: by e_j
    shares: Doubles,  # (width,), added to
    product: Doubles,  # (8,), overwritten
) -> float:
    """Return the sum of log v_j + e_j / v_j over masked dimensions, and differentiate the score."""
    total = 0.0
    for j in range(len(weight)):
        inverse_variance = 1 / variance[j]
        ratio = residual[j] * inverse_variance
        grad = -0.5 * share * weight[j] * inverse_variance
        grad_residual[j] = grad
        grad_variance[j] = grad * (1 - ratio)
        grad_diagonal[j] += grad
        shares[j] += weight[j] * share
        total += weight[j] * (ratio + log_noise[j])
        variance[j] = 1 + weight[j] * (variance[j] - 1)
    return total + sum_of_logs(variance, product)


@inlined("reassoc")
def times_columns(
    columns: Doubles,  # (T, width)
    vector: Doubles,  # (width,)
    products: Doubles,  # at most T, output
) -> None:
    """Write the product of each row with `vector`."""
    unrolled = len(products) - len(products) % 4
    for t in range(0, unrolled, 4):
        c0, c1, c2, c3 = columns[t], columns[t + 1], columns[t + 2], columns[t + 3]
        s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
        for j in range(len(vector)):
            s0 += c0[j] * vector[j]
            s1 += c1[j] * vector[j]
            s2 += c2[j] * vector[j]
            s3 += c3[j] * vector[j]
        products[t], products[t + 1], products[t + 2], products[t + 3] = s0, s1, s2, s3
    for t in range(unrolled, len(products)):
        c0, s0 = columns[t], 0.0
        for j in range(len(vector)):
            s0 += c0[j] * vector[j]
        products[t] = s0


@inlined("reassoc")
def add_grad_columns(
    variances: Doubles,  # (T, LANES)
    terms: Doubles,  # (T, LANES)
    grad_variance: Doubles,  # (LANES, width)
    grad_residual: Doubles,  # (LANES, width)
    weights: Doubles,  # (LANES, width)
    grad_sums: Doubles,  # (T, LANES), derivatives by sums over R
    square: int,
    grad_columns: Doubles,  # (T, width), added to
) -> None:
    """Add the derivatives of masks by the products of their masked dimensions, minus `grad_sums`.
    Every dimension gets `grad_sums` once for all masks."""
    for b in range(0, LANES, 4):
        r0, r1 = grad_residual[b], grad_residual[b + 1]
        r2, r3 = grad_residual[b + 2], grad_residual[b + 3]
        v0, v1 = grad_variance[b], grad_variance[b + 1]
        v2, v3 = grad_variance[b + 2], grad_variance[b + 3]
        w0, w1, w2, w3 = weights[b], weights[b + 1], weights[b + 2], weights[b + 3]
        for t in range(len(terms)):
            row = grad_columns[t]
            a0, a1, a2, a3 = terms[t, b], terms[t, b + 1], terms[t, b + 2], terms[t, b + 3]
            s0, s1 = grad_sums[t, b], grad_sums[t, b + 1]
            s2, s3 = grad_sums[t, b + 2], grad_sums[t, b + 3]
            for j in range(len(row)):
                row[j] += ((a0 * r0[j] - s0 * w0[j]) + (a1 * r1[j] - s1 * w1[j])) + (
                    (a2 * r2[j] - s2 * w2[j]) + (a3 * r3[j] - s3 * w3[j])
                )
        for t in range(square):
            row = grad_columns[t]
            a0, a1 = variances[t, b], variances[t, b + 1]
            a2, a3 = variances[t, b + 2], variances[t, b + 3]
            for j in range(len(row)):
                row[j] += (a0 * v0[j] + a1 * v1[j]) + (a2 * v2[j] + a3 * v3[j])


@inlined()
def space_for(dim: int, latent_dim: int, rank: int) -> Space:
    """Allocate the arrays that `gradient` and `log_prob` overwrite."""
    table = latent_dim * (latent_dim + 1) // 2 + latent_dim * rank
    width = -(-dim // 8) * 8
    return Space(
        np.empty((dim, table)),
        np.zeros((2, table, width)),
        np.empty((5, table)),
        np.empty((6, table, LANES)),
        np.empty((2, latent_dim, latent_dim, LANES)),
        np.empty((latent_dim, rank, LANES)),
        np.empty((3, latent_dim, latent_dim + rank, LANES)),
        np.zeros((7, width)),
        np.zeros((3, LANES, width)),
        np.empty(8),
    )


@inlined()
def gradient(
    loadings: Doubles,  # (D, K)
    noise: Doubles,  # (D,)
    factor: Doubles,  # (D, Q)
    data: Doubles,  # (D,), diagonal of the moment
    masked: Bools,  # (B, D)
    count: int,
    space: Space,
    grad_loadings: Doubles,  # (D, K), output
    grad_noise: Doubles,  # (D,), output
) -> float:
    """Return the sum of the masks' scores divided by `count`, and write its gradient."""
    dim, latent_dim = loadings.shape
    rank = factor.shape[1]
    square = latent_dim * (latent_dim + 1) // 2
    rows, columns, grad_columns = space.rows, space.columns[0], space.columns[1]
    total, grad_total, products = space.sums[0], space.sums[1], space.sums[2]
    mask_terms, mask_variances = space.sums[3], space.sums[4]
    sums, terms, variances = space.tables[0], space.tables[1], space.tables[2]
    grad_terms, grad_variances, grad_sums = space.tables[3], space.tables[4], space.tables[5]
    variance, residual, observed = space.wide[0], space.wide[1], space.wide[2]
    grad_diagonal, shares, diagonal, log_noise = (
        space.wide[3], space.wide[4], space.wide[5], space.wide[6],
    )  # fmt: skip
    grad_variance, grad_residual, weights = space.lanes[0], space.lanes[1], space.lanes[2]
    table, width = columns.shape
    scaled_table(loadings, noise, factor, rows, total)
    grad_columns[:] = 0.0
    grad_total[:] = 0.0
    grad_diagonal[:] = 0.0
    shares[:] = 0.0
    for j in range(dim):
        diagonal[j] = data[j] / noise[j]
        log_noise[j] = math.log(noise[j])
        for t in range(table):
            columns[t, j] = rows[j, t]
    score = 0.0
    for first in range(0, len(masked), LANES):
        lane_count = min(LANES, len(masked) - first)
        if lane_count < LANES:
            space.tables[:] = 0.0
            space.lanes[:] = 0.0
        for b in range(lane_count):
            mask, weight = masked[first + b], weights[b]
            for j in range(dim):
                weight[j] = mask[j]
                observed[j] = 1 - weight[j]
            times_columns(columns, observed, products)
            for t in range(table):
                sums[t, b] = products[t]
        solve(sums, latent_dim, space.work, space.gain, terms, variances)
        for b in range(lane_count):
            weight, size = weights[b], 0.0
            for j in range(width):
                size += weight[j]
                variance[j] = 1.0
                residual[j] = diagonal[j]
            for t in range(table):
                mask_terms[t], mask_variances[t] = terms[t, b], variances[t, b]
            share = 1 / (size * count)
            add_squares(mask_variances, mask_terms, square, columns, variance, residual)
            add_products(mask_terms, square, columns, residual)
            misfits = misfit_gradient(
                variance, residual, log_noise, weight, share, grad_variance[b], grad_residual[b],
                grad_diagonal, shares, space.product,
            )  # fmt: skip
            score -= 0.5 * (math.log(2 * math.pi) / count + misfits * share)
            times_columns(columns, grad_variance[b], products[:square])
            for t in range(square):
                grad_variances[t, b] = products[t]
            times_columns(columns, grad_residual[b], products)
            for t in range(table):
                grad_terms[t, b] = products[t]
        sums_gradient(
            grad_variances, grad_terms, space.work[1], space.gain, sums, space.small, grad_sums
        )
        add_grad_columns(
            variances, terms, grad_variance, grad_residual, weights, grad_sums, square, grad_columns
        )
        for t in range(table):
            for b in range(LANES):
                grad_total[t] += grad_sums[t, b]
    for j in range(dim):
        for a in range(latent_dim):
            grad_loadings[j, a] = 0.0
        scale = grad_diagonal[j] * diagonal[j]
        t = 0
        for a in range(latent_dim):
            for c in range(a, latent_dim):
                grad_product = grad_columns[t, j] + grad_total[t]
                grad_loadings[j, a] += grad_product * loadings[j, c]
                grad_loadings[j, c] += grad_product * loadings[j, a]
                scale += grad_product * rows[j, t]
                t += 1
        for a in range(latent_dim):
            for q in range(rank):
                grad_product = grad_columns[t, j] + grad_total[t]
                grad_loadings[j, a] += grad_product * factor[j, q]
                scale += grad_product * rows[j, t]
                t += 1
        for a in range(latent_dim):
            grad_loadings[j, a] /= noise[j]
        grad_noise[j] = (-0.5 * shares[j] - scale) / noise[j]
    return score


@inlined()
def log_prob(
    loadings: Doubles,  # (D, K)
    noise: Doubles,  # (D,)
    factor: Doubles,  # (D, Q)
    data: Doubles,  # (D,), diagonal of the moment
    space: Space,
) -> float:
    """Return the mean over observations of log p(x)."""
    total, work, gain = space.sums[0], space.work, space.gain
    dim, latent_dim = loadings.shape
    rank = factor.shape[1]
    table = len(total)
    sums, terms, variances = space.tables[0], space.tables[1], space.tables[2]
    scaled_table(loadings, noise, factor, space.rows, total)
    for t in range(table):
        for b in range(LANES):
            sums[t, b] = total[t]
    solve(sums, latent_dim, work, gain, terms, variances)
    summed = dim * math.log(2 * math.pi)
    for j in range(dim):
        summed += math.log(noise[j]) + data[j] / noise[j]
    for a in range(latent_dim):
        summed -= 2 * math.log(work[0, a, a, 0])  # its diagonal is inverted
        for q in range(rank):
            t = table - (latent_dim - a) * rank + q
            summed -= gain[a, q, 0] * total[t]
    mean: float = -0.5 * summed
    return mean
