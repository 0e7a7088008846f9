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
def by_seen(
    by_variances: Doubles,  # (T, LANES), of which K (K + 1) / 2 count
    by_terms: Doubles,  # (T, LANES)
    posterior: Doubles,  # (K, K, LANES)
    gain: Doubles,  # (K, Q, LANES)
    seen: Doubles,  # (T, LANES)
    work: Doubles,  # (3, K, K + Q, LANES), overwritten
    found: Doubles,  # (T, LANES), output
) -> None:
    """Write the derivatives by sums over R from those by the factors of v_j and e_j. With M = Σ L
    those by M are 2 (BR M − R), by Σ they are BV + by_M Lᵀ, by L they are Σ by_M, and by A they
    are −Σ by_Σ Σ."""
    latent_dim, rank = gain.shape[0], gain.shape[1]
    matrix, by_gain, left = work[0], work[1], work[2]  # matrix has by_Σ
    t = 0
    for a in range(latent_dim):
        for c in range(a, latent_dim):
            for b in range(LANES):
                matrix[a, c, b] = matrix[c, a, b] = by_variances[t, b]
                left[a, c, b] = left[c, a, b] = by_terms[t, b]
            t += 1
    square = t
    for a in range(latent_dim):
        for q in range(rank):
            for b in range(LANES):
                by_gain[a, q, b] = -2 * by_terms[t, b]
            for c in range(latent_dim):
                for b in range(LANES):
                    by_gain[a, q, b] += 2 * left[a, c, b] * gain[c, q, b]
            t += 1
    found[:] = 0.0
    for a in range(latent_dim):
        for c in range(latent_dim):
            for q in range(rank):
                for b in range(LANES):
                    t = square + c * rank + q
                    matrix[a, c, b] += by_gain[a, q, b] * seen[t, b]
                    found[square + a * rank + q, b] += posterior[a, c, b] * by_gain[c, q, b]
    left[:] = 0.0
    for a in range(latent_dim):
        for i in range(latent_dim):
            for c in range(latent_dim):
                for b in range(LANES):
                    left[a, c, b] += posterior[a, i, b] * matrix[i, c, b]
    t = 0
    for a in range(latent_dim):
        for c in range(a, latent_dim):
            twice = 0.5 if a == c else 1.0
            for i in range(latent_dim):
                for b in range(LANES):
                    found[t, b] -= twice * left[a, i, b] * posterior[i, c, b]
                    found[t, b] -= twice * left[c, i, b] * posterior[i, a, b]
            t += 1


@inlined("reassoc")
def add_products(
    terms: Doubles,  # (T,)
    first: int,
    block: Doubles,  # (T, width)
    found: Doubles,  # (width,), added to
) -> None:
    """Add the rows of a block from the first on, each times its term."""
    whole = len(terms) - (len(terms) - first) % 8
    for t in range(first, whole, 8):
        a0, a1, a2, a3 = terms[t], terms[t + 1], terms[t + 2], terms[t + 3]
        a4, a5, a6, a7 = terms[t + 4], terms[t + 5], terms[t + 6], terms[t + 7]
        for j in range(block.shape[1]):
            found[j] += (
                (a0 * block[t, j] + a1 * block[t + 1, j])
                + (a2 * block[t + 2, j] + a3 * block[t + 3, j])
            ) + (
                (a4 * block[t + 4, j] + a5 * block[t + 5, j])
                + (a6 * block[t + 6, j] + a7 * block[t + 7, j])
            )
    rest = len(terms) - whole
    t = whole
    if rest >= 4:
        a0, a1, a2, a3 = terms[t], terms[t + 1], terms[t + 2], terms[t + 3]
        for j in range(block.shape[1]):
            found[j] += (a0 * block[t, j] + a1 * block[t + 1, j]) + (
                a2 * block[t + 2, j] + a3 * block[t + 3, j]
            )
        t += 4
    if rest % 4 >= 2:
        a0, a1 = terms[t], terms[t + 1]
        for j in range(block.shape[1]):
            found[j] += a0 * block[t, j] + a1 * block[t + 1, j]
        t += 2
    if rest % 2 == 1:
        a0 = terms[t]
        for j in range(block.shape[1]):
            found[j] += a0 * block[t, j]


@inlined("reassoc")
def through_masked(
    variance: Doubles,  # (width,), v_j / psi_j; overwritten
    residual: Doubles,  # (width,), e_j / psi_j
    log_noise: Doubles,  # (width,)
    weight: Doubles,  # (width,), 1 where masked, else 0
    share: float,
    by_variance: Doubles,  # (width,), output: derivatives of the score by v_j
    by_residual: Doubles,  # (width,), output: by e_j
    by_diagonal: Doubles,  # (width,), added to: by e_j
    shares: Doubles,  # (width,), added to
    product: Doubles,  # (8,), overwritten
) -> float:
    """Return the sum of log v_j + e_j / v_j over masked dimensions, and differentiate the score."""
    total = 0.0
    for j in range(len(weight)):
        inverse_variance = 1 / variance[j]
        ratio = residual[j] * inverse_variance
        own = -0.5 * share * weight[j] * inverse_variance
        by_residual[j] = own
        by_variance[j] = own * (1 - ratio)
        by_diagonal[j] += own
        shares[j] += weight[j] * share
        total += weight[j] * (ratio + log_noise[j])
        variance[j] = 1 + weight[j] * (variance[j] - 1)
    return total + sum_of_logs(variance, product)


@inlined("reassoc")
def times_columns(
    columns: Doubles,  # (T, width)
    by: Doubles,  # (width,)
    found: Doubles,  # at most T, output
) -> None:
    """Write the product of each row with `by`."""
    whole = len(found) - len(found) % 4
    for t in range(0, whole, 4):
        c0, c1, c2, c3 = columns[t], columns[t + 1], columns[t + 2], columns[t + 3]
        s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
        for j in range(len(by)):
            s0 += c0[j] * by[j]
            s1 += c1[j] * by[j]
            s2 += c2[j] * by[j]
            s3 += c3[j] * by[j]
        found[t], found[t + 1], found[t + 2], found[t + 3] = s0, s1, s2, s3
    for t in range(whole, len(found)):
        c0, s0 = columns[t], 0.0
        for j in range(len(by)):
            s0 += c0[j] * by[j]
        found[t] = s0


@inlined("reassoc")
def add_by_columns(
    variances: Doubles,  # (T, LANES)
    terms: Doubles,  # (T, LANES)
    by_variance: Doubles,  # (LANES, width)
    by_residual: Doubles,  # (LANES, width)
    weights: Doubles,  # (LANES, width)
    by_sums: Doubles,  # (T, LANES), derivatives by sums over R
    square: int,
    by_columns: Doubles,  # (T, width), added to
) -> None:
    """Add the derivatives of masks by the products of their masked dimensions, minus `by_sums`.
    Every dimension gets `by_sums` once for all masks."""
    for b in range(0, LANES, 4):
        r0, r1, r2, r3 = by_residual[b], by_residual[b + 1], by_residual[b + 2], by_residual[b + 3]
        v0, v1, v2, v3 = by_variance[b], by_variance[b + 1], by_variance[b + 2], by_variance[b + 3]
        w0, w1, w2, w3 = weights[b], weights[b + 1], weights[b + 2], weights[b + 3]
        for t in range(len(terms)):
            own = by_columns[t]
            a0, a1, a2, a3 = terms[t, b], terms[t, b + 1], terms[t, b + 2], terms[t, b + 3]
            s0, s1, s2, s3 = by_sums[t, b], by_sums[t, b + 1], by_sums[t, b + 2], by_sums[t, b + 3]
            for j in range(len(own)):
                own[j] += ((a0 * r0[j] - s0 * w0[j]) + (a1 * r1[j] - s1 * w1[j])) + (
                    (a2 * r2[j] - s2 * w2[j]) + (a3 * r3[j] - s3 * w3[j])
                )
        for t in range(square):
            own = by_columns[t]
            a0, a1 = variances[t, b], variances[t, b + 1]
            a2, a3 = variances[t, b + 2], variances[t, b + 3]
            for j in range(len(own)):
                own[j] += (a0 * v0[j] + a1 * v1[j]) + (a2 * v2[j] + a3 * v3[j])


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
    by_loadings: Doubles,  # (D, K), output
    by_noise: Doubles,  # (D,), output
) -> float:
    """Return the sum of the masks' scores divided by `count`, and write its gradient."""
    dim, latent_dim = loadings.shape
    rank = factor.shape[1]
    square = latent_dim * (latent_dim + 1) // 2
    rows, columns, by_columns = space.rows, space.columns[0], space.columns[1]
    total, by_all, found = space.sums[0], space.sums[1], space.sums[2]
    own_terms, own_variances = space.sums[3], space.sums[4]
    seen, terms, variances = space.tables[0], space.tables[1], space.tables[2]
    by_terms, by_variances, by_sums = space.tables[3], space.tables[4], space.tables[5]
    variance, residual, observed = space.wide[0], space.wide[1], space.wide[2]
    by_diagonal, shares, diagonal, log_noise = (
        space.wide[3], space.wide[4], space.wide[5], space.wide[6],
    )  # fmt: skip
    by_variance, by_residual, weights = space.lanes[0], space.lanes[1], space.lanes[2]
    table, width = columns.shape
    scaled_table(loadings, noise, factor, rows, total)
    by_columns[:] = 0.0
    by_all[:] = 0.0
    by_diagonal[:] = 0.0
    shares[:] = 0.0
    for j in range(dim):
        diagonal[j] = data[j] / noise[j]
        log_noise[j] = math.log(noise[j])
        for t in range(table):
            columns[t, j] = rows[j, t]
    score = 0.0
    for first in range(0, len(masked), LANES):
        count_of_group = min(LANES, len(masked) - first)
        if count_of_group < LANES:
            space.tables[:] = 0.0
            space.lanes[:] = 0.0
        for b in range(count_of_group):
            own, weight = masked[first + b], weights[b]
            for j in range(dim):
                weight[j] = own[j]
                observed[j] = 1 - weight[j]
            times_columns(columns, observed, found)
            for t in range(table):
                seen[t, b] = found[t]
        solve(seen, latent_dim, space.work, space.gain, terms, variances)
        for b in range(count_of_group):
            weight, size = weights[b], 0.0
            for j in range(width):
                size += weight[j]
                variance[j] = 1.0
                residual[j] = diagonal[j]
            for t in range(table):
                own_terms[t], own_variances[t] = terms[t, b], variances[t, b]
            share = 1 / (size * count)
            add_squares(own_variances, own_terms, square, columns, variance, residual)
            add_products(own_terms, square, columns, residual)
            misfits = through_masked(
                variance, residual, log_noise, weight, share, by_variance[b], by_residual[b],
                by_diagonal, shares, space.product,
            )  # fmt: skip
            score -= 0.5 * (math.log(2 * math.pi) / count + misfits * share)
            times_columns(columns, by_variance[b], found[:square])
            for t in range(square):
                by_variances[t, b] = found[t]
            times_columns(columns, by_residual[b], found)
            for t in range(table):
                by_terms[t, b] = found[t]
        by_seen(by_variances, by_terms, space.work[1], space.gain, seen, space.small, by_sums)
        add_by_columns(
            variances, terms, by_variance, by_residual, weights, by_sums, square, by_columns
        )
        for t in range(table):
            for b in range(LANES):
                by_all[t] += by_sums[t, b]
    for j in range(dim):
        for a in range(latent_dim):
            by_loadings[j, a] = 0.0
        scale = by_diagonal[j] * diagonal[j]
        t = 0
        for a in range(latent_dim):
            for c in range(a, latent_dim):
                by_product = by_columns[t, j] + by_all[t]
                by_loadings[j, a] += by_product * loadings[j, c]
                by_loadings[j, c] += by_product * loadings[j, a]
                scale += by_product * rows[j, t]
                t += 1
        for a in range(latent_dim):
            for q in range(rank):
                by_product = by_columns[t, j] + by_all[t]
                by_loadings[j, a] += by_product * factor[j, q]
                scale += by_product * rows[j, t]
                t += 1
        for a in range(latent_dim):
            by_loadings[j, a] /= noise[j]
        by_noise[j] = (-0.5 * shares[j] - scale) / noise[j]
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
    seen, terms, variances = space.tables[0], space.tables[1], space.tables[2]
    scaled_table(loadings, noise, factor, space.rows, total)
    for t in range(table):
        for b in range(LANES):
            seen[t, b] = total[t]
    solve(seen, latent_dim, work, gain, terms, variances)
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
