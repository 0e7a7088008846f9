"""Compiled loops of training steps, one by one or many, for all starts."""

import math

import numpy as np

from mptcore.families.linear_gaussian.kernels.blocks import Bools, Doubles
from mptcore.families.linear_gaussian.kernels.gradient import gradient, log_prob, space_for
from mptcore.runtime.compiled import inlined, kernel


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
    grad_loadings: Doubles,  # (S · parts, D, K), output
    grad_noise: Doubles,  # (S · parts, D), output
) -> None:
    """Write the mean score of parts `first` to `end` of the masks and its gradient. A part is
    `part_size` masks of a start; the mean is over `count` masks."""
    starts, dim, latent_dim = loadings.shape
    parts = len(scores) // starts
    space = space_for(dim, latent_dim, factors.shape[2])
    for item in range(first, end):
        s = item // parts
        begins = item % parts * part_size
        scores[item] = gradient(
            loadings[s], noise[s], factors[s % len(factors)], diagonals[s % len(diagonals)],
            masked[s, begins : begins + part_size], count, space,
            grad_loadings[item], grad_noise[item],
        )  # fmt: skip


@kernel("void(f8[:,:,::1], f8[:,::1], f8[:,:,::1], f8[:,::1], f8[::1])")
def log_probs(
    loadings: Doubles,  # (S, D, K)
    noise: Doubles,  # (S, D)
    factors: Doubles,  # (S or 1, D, Q)
    diagonals: Doubles,  # (S or 1, D)
    values: Doubles,  # (S,), output
) -> None:
    """Write the mean over observations of log p(x) by each start."""
    starts, dim, latent_dim = loadings.shape
    space = space_for(dim, latent_dim, factors.shape[2])
    for s in range(starts):
        factor, diagonal = factors[s % len(factors)], diagonals[s % len(diagonals)]
        values[s] = log_prob(loadings[s], noise[s], factor, diagonal, space)


@kernel("f8(f8[:,::1], f8[::1], f8[::1])")
def rounding(
    loadings: Doubles,  # (D, K)
    noise: Doubles,  # (D,)
    data: Doubles,  # (D,), diagonal of the moment
) -> float:
    """Return the bound of `rounding.rounding` with Σ_j |w_j|² in place of |W|². It is larger."""
    power, loading, largest, half = 0.0, 0.0, 0.0, 0.0
    for j in range(len(noise)):
        square = 0.0
        for a in range(loadings.shape[1]):
            square += loadings[j, a] * loadings[j, a] / noise[j]
        power += square
        loading = max(loading, square)
        largest = max(largest, data[j] / noise[j])
        half += 0.25 * data[j] / noise[j]
    terms = (1 + power) * (loading + math.sqrt(loading * half)) + largest + loading * half
    bound: float = 2.0**-52 * terms
    return bound


@inlined()
def adam_step(
    parameter: Doubles,  # (n,), changed
    grad: Doubles,  # (n,), derivatives of the loss
    first_moment: Doubles,  # (n,), changed
    second_moment: Doubles,  # (n,), changed
    step: int,
    rates: Doubles,  # (4,): learning rate, both decays, epsilon
) -> None:
    """Take step number `step`, from 1 on, of Adam as torch does. No sum has two products: which of
    them a compiler joins with the sum, and so the last bit, is not certain."""
    size, correction = rates[0] / (1 - rates[1] ** step), math.sqrt(1 - rates[2] ** step)
    first_share, second_share, epsilon = 1 - rates[1], 1 - rates[2], rates[3]
    for i in range(len(parameter)):
        derivative = grad[i]
        first_moment[i] += first_share * (derivative - first_moment[i])
        second_moment[i] += second_share * (derivative * derivative - second_moment[i])
        root = math.sqrt(second_moment[i]) / correction + epsilon
        parameter[i] -= size * first_moment[i] / root


@kernel(
    "i8(f8[:,::1], f8[:,::1], f8[:,::1], f8[::1], f8[::1], f8[::1], b1, f8[:,::1], f8[::1],"
    " f8[:,::1], f8[::1], b1[:,:,::1], i8, i8, i8, f8[::1], f8, f8[:,::1])"
)
def train_steps(
    loadings: Doubles,  # (D, K), changed
    loadings_first: Doubles,  # (D, K), Adam's first moments, changed
    loadings_second: Doubles,  # (D, K), its second ones, changed
    log_noise: Doubles,  # (1 or D,), changed if learned, as are its moments
    noise_first: Doubles,  # (1 or D,)
    noise_second: Doubles,  # (1 or D,)
    learns_noise: bool,
    factor: Doubles,  # (D, Q)
    data: Doubles,  # (D,), diagonal of the moment
    heldout_factor: Doubles,  # (D, Q'), of the held-out observations
    heldout_data: Doubles,  # (D,), or none without such observations
    masked: Bools,  # (E, B, D)
    epoch: int,
    every: int,
    step: int,
    rates: Doubles,  # (4,): learning rate, both decays, epsilon
    limit: float,
    curves: Doubles,  # (3, E), output: mean score, log p of the data, and of held-out ones
) -> int:
    """Take a step for each epoch from `epoch` on and return their number. Stop before a step if
    rounding may exceed `limit`. log p is computed for every `every`-th epoch. `step` is the number
    of steps taken before."""
    dim, latent_dim = loadings.shape
    space = space_for(dim, latent_dim, factor.shape[1])
    heldout_space = space_for(dim, latent_dim, heldout_factor.shape[1])
    noise, grad_noise, grad_loadings = np.empty(dim), np.empty(dim), np.empty((dim, latent_dim))
    grad_log_noise = np.empty(len(log_noise))
    for e in range(len(masked)):
        for j in range(dim):
            noise[j] = math.exp(log_noise[j % len(log_noise)])
        if not rounding(loadings, noise, data) <= limit:
            return e
        curves[0, e] = gradient(
            loadings, noise, factor, data, masked[e], masked.shape[1], space,
            grad_loadings, grad_noise,
        )  # fmt: skip
        if (epoch + e) % every == 0:
            curves[1, e] = log_prob(loadings, noise, factor, data, space)
            if len(heldout_data) > 0:
                curves[2, e] = log_prob(
                    loadings, noise, heldout_factor, heldout_data, heldout_space
                )
        grad_loadings *= -dim
        adam_step(
            loadings.reshape(dim * latent_dim), grad_loadings.reshape(dim * latent_dim),
            loadings_first.reshape(dim * latent_dim), loadings_second.reshape(dim * latent_dim),
            step + e + 1, rates,
        )  # fmt: skip
        if learns_noise:
            grad_log_noise[:] = 0.0
            for j in range(dim):
                grad_log_noise[j % len(log_noise)] -= dim * grad_noise[j] * noise[j]
            adam_step(log_noise, grad_log_noise, noise_first, noise_second, step + e + 1, rates)
    return len(masked)
