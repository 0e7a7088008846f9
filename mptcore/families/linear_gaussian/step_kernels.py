"""Compiled loops of a training step: the score of its masks and the gradient, for all starts.

The score depends on loadings, noise and data only through the table of products in `kernels` and
C_jj / psi_j. So its derivatives go backwards through these: the factors of v_j and e_j lead to the
products of a masked dimension, and the sums over R to those of an observed one.
"""

import math

import numpy as np

from mptcore.families.linear_gaussian.kernels import (
    LANES,
    Bools,
    Doubles,
    add_products,
    add_squares,
    begin,
    misfit,
    observe,
    solve,
)
from mptcore.runtime.compiled import inlined, kernel


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
    by_variances: Doubles,  # (T,), of which K (K + 1) / 2 count
    by_terms: Doubles,  # (T,)
    posterior: Doubles,  # (K, K)
    gain: Doubles,  # (K, Q)
    seen: Doubles,  # (T,)
    work: Doubles,  # (3, K, K + Q), overwritten
    found: Doubles,  # (T,), output
) -> None:
    """Write the derivatives by sums over R from those by the factors of v_j and e_j. With M = Σ L
    those by M are 2 (BR M − R), by Σ they are BV + by_M Lᵀ, by L they are Σ by_M, and by A they
    are −Σ by_Σ Σ."""
    latent_dim, rank = gain.shape
    square = latent_dim * (latent_dim + 1) // 2
    matrix, by_gain, left = work[0], work[1], work[2]  # matrix has by_Σ
    t = 0
    for a in range(latent_dim):
        for c in range(a, latent_dim):
            matrix[a, c] = matrix[c, a] = by_variances[t]
            left[a, c] = left[c, a] = by_terms[t]
            t += 1
    for a in range(latent_dim):
        for q in range(rank):
            own = -by_terms[square + a * rank + q]
            for c in range(latent_dim):
                own += left[a, c] * gain[c, q]
            by_gain[a, q] = 2 * own
    for a in range(latent_dim):
        for c in range(latent_dim):
            for q in range(rank):
                matrix[a, c] += by_gain[a, q] * seen[square + c * rank + q]
        for q in range(rank):
            own = 0.0
            for c in range(latent_dim):
                own += posterior[a, c] * by_gain[c, q]
            found[square + a * rank + q] = own
    for a in range(latent_dim):
        for c in range(latent_dim):
            left[a, c] = 0.0
            for i in range(latent_dim):
                left[a, c] += posterior[a, i] * matrix[i, c]
    t = 0
    for a in range(latent_dim):
        for c in range(a, latent_dim):
            own = 0.0
            for i in range(latent_dim):
                own += left[a, i] * posterior[i, c] + left[c, i] * posterior[i, a]
            found[t] = -0.5 * own if a == c else -own
            t += 1


@inlined("reassoc")
def through_masked(
    variance: Doubles,  # (width,), v_j / psi_j
    residual: Doubles,  # (width,), e_j / psi_j
    weight: Doubles,  # (width,), 1 where masked, else 0
    share: float,
    by_variance: Doubles,  # (width,), output: derivatives of the score by v_j
    by_residual: Doubles,  # (width,), output: by e_j
) -> None:
    for j in range(len(weight)):
        inverse_variance = 1 / variance[j]
        own = -0.5 * share * weight[j] * inverse_variance
        by_residual[j] = own
        by_variance[j] = own * (1 - residual[j] * inverse_variance)


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


@inlined()
def add_by_columns(
    variances: Doubles,  # (T,)
    terms: Doubles,  # (T,)
    by_variance: Doubles,  # (width,)
    by_residual: Doubles,  # (width,)
    weight: Doubles,  # (width,)
    by_sums: Doubles,  # (T,), derivatives by sums over R
    square: int,
    by_columns: Doubles,  # (T, width), added to
) -> None:
    """Add a mask's derivatives by the products of its masked dimensions, minus `by_sums`. Every
    dimension gets `by_sums` once for all masks."""
    for t in range(len(terms)):
        own, term, by_sum = by_columns[t], terms[t], by_sums[t]
        if t < square:
            factor = variances[t]
            for j in range(len(weight)):
                own[j] += by_residual[j] * term + by_variance[j] * factor - weight[j] * by_sum
        else:
            for j in range(len(weight)):
                own[j] += by_residual[j] * term - weight[j] * by_sum


@kernel(
    "void(f8[:,:,::1], f8[:,::1], f8[:,:,::1], f8[:,::1], b1[:,:,::1], i8, i8, i8, i8,"
    " f8[::1], f8[:,:,::1], f8[:,::1])"
)
def score_gradients(
    loadings: Doubles,  # (S, D, K)
    noise: Doubles,  # (S, D)
    factors: Doubles,  # (S or 1, D, Q)
    diagonals: Doubles,  # (S or 1, D)
    masked: Bools,  # (S, B, D)
    count: int,
    part_size: int,
    first: int,
    end: int,
    scores: Doubles,  # (S · parts,), output
    by_loadings: Doubles,  # (S · parts, D, K), output
    by_noise: Doubles,  # (S · parts, D), output
) -> None:
    """Write the mean score of parts `first` to `end` of the masks and its gradient. A part is
    `part_size` masks of a start; the mean is over `count` masks."""
    starts, dim, latent_dim = loadings.shape
    rank = factors.shape[2]
    square = latent_dim * (latent_dim + 1) // 2
    table = square + latent_dim * rank
    parts = len(scores) // starts
    width = -(-dim // 8) * 8
    rows, total = np.empty((dim, table)), np.empty(table)
    columns, by_columns = np.empty((table, width)), np.empty((table, width))
    by_sums, by_all, by_terms = np.empty(table), np.empty(table), np.empty(table)
    by_variances = np.empty(square)
    tables = np.empty((3, LANES, table))
    seen, terms, variances = tables[0], tables[1], tables[2]
    work, gain = np.empty((2, latent_dim, latent_dim, LANES)), np.empty((latent_dim, rank, LANES))
    own_posterior, own_gain = np.empty((latent_dim, latent_dim)), np.empty((latent_dim, rank))
    small = np.empty((3, latent_dim, latent_dim + rank))
    variance, residual, weight = np.empty(width), np.empty(width), np.empty(width)
    by_variance, by_residual, by_diagonal = np.empty(width), np.empty(width), np.empty(width)
    diagonal, log_noise, shares = np.zeros(width), np.zeros(width), np.empty(width)
    places, product, sizes = np.empty(dim + 1, np.int64), np.empty(8), np.empty(LANES, np.int64)
    for item in range(first, end):
        s = item // parts
        factor = factors[s % len(factors)]
        scaled_table(loadings[s], noise[s], factor, rows, total)
        columns[:] = 0.0
        by_columns[:] = 0.0
        by_all[:] = 0.0
        by_diagonal[:] = 0.0
        shares[:] = 0.0
        for j in range(dim):
            diagonal[j] = diagonals[s % len(diagonals), j] / noise[s, j]
            log_noise[j] = math.log(noise[s, j])
            for t in range(table):
                columns[t, j] = rows[j, t]
        score = 0.0
        begins = item % parts * part_size
        for group in range(begins, min(begins + part_size, masked.shape[1]), LANES):
            last = min(begins + part_size, masked.shape[1]) - 1
            for b in range(LANES):
                own = min(group + b, last)
                sizes[b] = observe(rows, total, masked[s, own], places, seen[b])
            solve(seen, latent_dim, work, gain, terms, variances)
            for b in range(min(LANES, last + 1 - group)):
                share = 1 / (sizes[b] * count)
                for a in range(latent_dim):
                    for c in range(latent_dim):
                        own_posterior[a, c] = work[1, a, c, b]
                    for q in range(rank):
                        own_gain[a, q] = gain[a, q, b]
                begin(diagonal, masked[s, group + b], variance, residual, weight)
                add_squares(variances[b], terms[b], square, columns, variance, residual)
                add_products(terms[b], square, columns, residual)
                through_masked(variance, residual, weight, share, by_variance, by_residual)
                times_columns(columns, by_variance, by_variances)
                times_columns(columns, by_residual, by_terms)
                by_seen(by_variances, by_terms, own_posterior, own_gain, seen[b], small, by_sums)
                add_by_columns(
                    variances[b], terms[b], by_variance, by_residual, weight, by_sums, square,
                    by_columns,
                )  # fmt: skip
                for t in range(table):
                    by_all[t] += by_sums[t]
                for j in range(width):
                    by_diagonal[j] += by_residual[j]
                    shares[j] += weight[j] * share
                misfits = misfit(variance, residual, log_noise, weight, product)
                score -= 0.5 * (math.log(2 * math.pi) / count + misfits * share)
        scores[item] = score
        for j in range(dim):
            for a in range(latent_dim):
                by_loadings[item, j, a] = 0.0
            scale = by_diagonal[j] * diagonal[j]
            t = 0
            for a in range(latent_dim):
                for c in range(a, latent_dim):
                    by_product = by_columns[t, j] + by_all[t]
                    by_loadings[item, j, a] += by_product * loadings[s, j, c]
                    by_loadings[item, j, c] += by_product * loadings[s, j, a]
                    scale += by_product * rows[j, t]
                    t += 1
            for a in range(latent_dim):
                for q in range(rank):
                    by_product = by_columns[t, j] + by_all[t]
                    by_loadings[item, j, a] += by_product * factor[j, q]
                    scale += by_product * rows[j, t]
                    t += 1
            for a in range(latent_dim):
                by_loadings[item, j, a] /= noise[s, j]
            by_noise[item, j] = (-0.5 * shares[j] - scale) / noise[s, j]


@kernel("void(f8[:,:,::1], f8[:,::1], f8[:,:,::1], f8[:,::1], f8[::1])")
def log_probs(
    loadings: Doubles,  # (S, D, K)
    noise: Doubles,  # (S, D)
    factors: Doubles,  # (S or 1, D, Q)
    diagonals: Doubles,  # (S or 1, D)
    found: Doubles,  # (S,), output
) -> None:
    """Write the mean over observations of log p(x) by each start."""
    starts, dim, latent_dim = loadings.shape
    rank = factors.shape[2]
    table = latent_dim * (latent_dim + 1) // 2 + latent_dim * rank
    rows, total = np.empty((dim, table)), np.empty(table)
    tables = np.empty((3, LANES, table))
    seen, terms, variances = tables[0], tables[1], tables[2]
    work, gain = np.empty((2, latent_dim, latent_dim, LANES)), np.empty((latent_dim, rank, LANES))
    for s in range(starts):
        diagonal = diagonals[s % len(diagonals)]
        scaled_table(loadings[s], noise[s], factors[s % len(factors)], rows, total)
        for b in range(LANES):
            for t in range(table):
                seen[b, t] = total[t]
        solve(seen, latent_dim, work, gain, terms, variances)
        summed = dim * math.log(2 * math.pi)
        for j in range(dim):
            summed += math.log(noise[s, j]) + diagonal[j] / noise[s, j]
        for a in range(latent_dim):
            summed -= 2 * math.log(work[0, a, a, 0])  # its diagonal is inverted
            for q in range(rank):
                t = table - (latent_dim - a) * rank + q
                summed -= gain[a, q, 0] * total[t]
        found[s] = -0.5 * summed
