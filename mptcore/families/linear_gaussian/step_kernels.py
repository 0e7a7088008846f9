"""Compiled loops of a training step: the score of its masks and the gradient, for all starts.

The score depends on loadings, noise and data only through the table of products in `kernels` and
C_jj / psi_j. So its derivatives go backwards through these: the factors of v_j and e_j lead to the
products of a masked dimension, and the sums over R to those of an observed one.
"""

import math

import numpy as np
from numpy.typing import NDArray

from mptcore.families.linear_gaussian.kernels import (
    GROUP,
    LANES,
    Bools,
    Doubles,
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
    rows: Doubles,  # (D, T)
    diagonal: Doubles,  # (D,)
    places: NDArray[np.int64],  # the masked dimensions
    variances: Doubles,  # (T,)
    terms: Doubles,  # (T,)
    square: int,
    share: float,
    by: Doubles,  # (2, D), output: derivatives of the score by v_j and e_j of masked j
    by_factors: Doubles,  # (2, T), output: derivatives by the factors of v_j and of e_j
) -> float:
    """Return the sum of log v_j + e_j / v_j, in units of the noise."""
    by_variances, by_terms = by_factors[0], by_factors[1]
    for t in range(len(terms)):
        by_variances[t] = by_terms[t] = 0.0
    summed, product = 0.0, 1.0
    for i in range(len(places)):
        row = rows[places[i]]
        variance, residual = 1.0, diagonal[places[i]]
        for t in range(square):
            variance += variances[t] * row[t]
        for t in range(len(terms)):
            residual += terms[t] * row[t]
        inverse_variance = 1 / variance
        ratio = residual * inverse_variance
        by_residual = -0.5 * share * inverse_variance
        by_variance = by_residual * (1 - ratio)
        by[0, i], by[1, i] = by_variance, by_residual
        for t in range(square):
            by_variances[t] += by_variance * row[t]
        for t in range(len(terms)):
            by_terms[t] += by_residual * row[t]
        summed += ratio
        product *= variance
        if i % GROUP == GROUP - 1:
            summed += math.log(product)
            product = 1.0
    return summed + math.log(product)


@inlined()
def add_by_rows(
    places: NDArray[np.int64],
    variances: Doubles,
    terms: Doubles,
    by: Doubles,
    by_sums: Doubles,  # (T,), derivatives by sums over R
    square: int,
    by_rows: Doubles,  # (D, T), added to
) -> None:
    """Add a mask's derivatives by the products of its masked dimensions, less `by_sums`, which
    every dimension gets once for all masks."""
    for i in range(len(places)):
        own = by_rows[places[i]]
        for t in range(len(terms)):
            own[t] += by[1, i] * terms[t] - by_sums[t]
        for t in range(square):
            own[t] += by[0, i] * variances[t]


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
    rows, by_rows = np.empty((dim, table)), np.empty((dim, table))
    total, by_sums, by_all = np.empty(table), np.empty(table), np.empty(table)
    tables = np.empty((3, LANES, table))
    seen, terms, variances = tables[0], tables[1], tables[2]
    work, gain = np.empty((2, latent_dim, latent_dim, LANES)), np.empty((latent_dim, rank, LANES))
    own_posterior, own_gain = np.empty((latent_dim, latent_dim)), np.empty((latent_dim, rank))
    small = np.empty((3, latent_dim, latent_dim + rank))
    by, by_factors, by_diagonal = np.empty((2, dim)), np.empty((2, table)), np.empty(dim)
    diagonal, places = np.empty(dim), np.empty(dim + 1, np.int64)
    for item in range(first, end):
        s = item // parts
        factor = factors[s % len(factors)]
        scaled_table(loadings[s], noise[s], factor, rows, total)
        by_log_noise = by_noise[item]
        for j in range(dim):
            diagonal[j] = diagonals[s % len(diagonals), j] / noise[s, j]
            by_diagonal[j] = by_log_noise[j] = 0.0
            for t in range(table):
                by_rows[j, t] = 0.0
        for t in range(table):
            by_all[t] = 0.0
        score = 0.0
        begin = item % parts * part_size
        for group in range(begin, min(begin + part_size, masked.shape[1]), LANES):
            last = min(begin + part_size, masked.shape[1]) - 1
            for b in range(LANES):
                own = min(group + b, last)
                observe(rows, total, masked[s, own], places, seen[b])
            solve(seen, latent_dim, work, gain, terms, variances)
            for b in range(min(LANES, last + 1 - group)):
                size = 0
                for j in range(dim):
                    places[size] = j
                    size += masked[s, group + b, j]
                own_places = places[:size]
                share = 1 / (size * count)
                for a in range(latent_dim):
                    for c in range(latent_dim):
                        own_posterior[a, c] = work[1, a, c, b]
                    for q in range(rank):
                        own_gain[a, q] = gain[a, q, b]
                misfits = through_masked(
                    rows, diagonal, own_places, variances[b], terms[b], square, share, by,
                    by_factors,
                )  # fmt: skip
                by_seen(
                    by_factors[0], by_factors[1], own_posterior, own_gain, seen[b], small, by_sums
                )
                add_by_rows(own_places, variances[b], terms[b], by, by_sums, square, by_rows)
                for t in range(table):
                    by_all[t] += by_sums[t]
                for i in range(size):
                    j = own_places[i]
                    by_diagonal[j] += by[1, i]
                    by_log_noise[j] -= 0.5 * share
                    misfits += math.log(noise[s, j])
                score -= 0.5 * (math.log(2 * math.pi) / count + misfits * share)
        scores[item] = score
        for j in range(dim):
            by_products = by_rows[j]
            for t in range(table):
                by_products[t] += by_all[t]
            for a in range(latent_dim):
                by_loadings[item, j, a] = 0.0
            scale = by_diagonal[j] * diagonal[j]
            t = 0
            for a in range(latent_dim):
                for c in range(a, latent_dim):
                    by_loadings[item, j, a] += by_products[t] * loadings[s, j, c]
                    by_loadings[item, j, c] += by_products[t] * loadings[s, j, a]
                    scale += by_products[t] * rows[j, t]
                    t += 1
            for a in range(latent_dim):
                for q in range(rank):
                    by_loadings[item, j, a] += by_products[t] * factor[j, q]
                    scale += by_products[t] * rows[j, t]
                    t += 1
            for a in range(latent_dim):
                by_loadings[item, j, a] /= noise[s, j]
            by_noise[item, j] = (by_log_noise[j] - scale) / noise[s, j]


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
