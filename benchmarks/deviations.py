"""`python -m benchmarks.deviations`: what the paper's misprints and the choices of its published
code change, in nats. Nothing of mptcore computes here, except the scores of `rxnfp-bert`, so that
the first figures are also an independent check of Table 1 and of Fig. 1 (right)."""

import math
from collections.abc import Iterator
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Array = NDArray[np.float64]
SEEDS = (4, 44, 444, 4444, 44444)
NOISE_PRECISION = 5.0


def main() -> None:
    for part in (ppca, one_size, bernoulli, corruption):
        for what, value in part():
            print(f"{what}: {value}", flush=True)


def ppca() -> Iterator[tuple[str, str]]:
    """Yield figures of Table 1 with P = 1: with both signs of the conditional variance, and with
    data from the model."""
    covariance, shared, isotropic = _data(1000, 200, 5, 1991)
    yield "Table 1, LML", f"{_log_density(covariance, shared).mean():.4f}"
    for sign, name in ((-1, "minus"), (1, "plus")):
        scores = [_cumulative(covariance, shared, seed, sign) for seed in SEEDS]
        yield f"Table 1, mean MPT of five seeds, P = 1, {name}", f"{fmean(scores):.4f}"
    yield "isotropic noise, LML", f"{_log_density(covariance, isotropic).mean():.4f}"
    scores = [_cumulative(covariance, isotropic, seed, -1) for seed in SEEDS]
    yield "isotropic noise, mean MPT of five seeds, P = 1", f"{fmean(scores):.4f}"


def one_size() -> Iterator[tuple[str, str]]:
    """Yield both biases of masks of 76 of 512 dimensions, from 40 masks."""
    dim, size = 512, 76
    covariance, x, _ = _data(100, dim, 2, 111)
    lml = _log_density(covariance, x).mean()
    generator = torch.Generator().manual_seed(9)
    scores, rest = list[float](), list[float]()
    for _ in range(40):
        order = torch.randperm(dim, generator=generator).numpy()
        masked, seen = order[:size], order[size:]
        scores.append(dim * _conditional(covariance, x, masked, seen, -1).mean())
        rest.append(_log_density(covariance[np.ix_(seen, seen)], x[:, seen]).mean())
    for name, values in (("D · S(76) − LML", np.array(scores) - lml),
                         ("−E log p(x_R), which C.1 gives", -np.array(rest))):  # fmt: skip
        error = values.std(ddof=1) / math.sqrt(len(values))
        yield f"Fig. 1, right, {name}", f"{values.mean():.3f} ± {error:.3f}"


def bernoulli() -> Iterator[tuple[str, str]]:
    """Yield figures of a linear VAE of binary digits, K = 2, fitted by its LML: on a fine grid, by
    the marginals of the masked pixels, and on four nodes for each axis."""
    x = torch.from_numpy((load_digits().data > 8).astype(np.float64))
    weights, bias = _fitted(x)
    for nodes in (120, 60):
        fine = _log_likelihoods(x, weights, bias, _uniform_grid(nodes))
        yield f"linear VAE, LML on {nodes} × {nodes} nodes", f"{_lml(*fine):.4f}"
    yield "linear VAE, mean MPT of five seeds, P = 1", f"{_mpt(*fine):.4f}"
    per_pixel, log_weights = fine
    marginals = torch.logsumexp(per_pixel + log_weights[:, None, None], dim=0).sum(1).mean()
    yield "linear VAE, the same with marginals of masked pixels", f"{marginals:.4f}"
    four = _log_likelihoods(x, weights, bias, _gauss_hermite(4))
    yield "linear VAE, LML on 4 × 4 nodes", f"{_lml(*four):.4f}"
    yield "linear VAE, mean MPT of five seeds, P = 1, on 4 × 4 nodes", f"{_mpt(*four):.4f}"


def corruption() -> Iterator[tuple[str, str]]:
    """Yield the area under the curve of `rxnfp-bert` for 100 molecules, with both corruptions."""
    from mptcore.protocol.records import Metric
    from mptcore.run import run
    from mptcore.specs import MaskedLmExperiment

    for name in ("mask", "bert"):
        spec = MaskedLmExperiment.model_validate(
            {
                "model": {"family": "masked_lm", "checkpoint": "rxnfp-bert", "corruption": name},
                "data": {"source": "text", "file": "nci_smiles.txt", "n": 100, "seed": 1},
                "evaluate": {"masks": {"schedule": "rates", "per_size": 1}},
                "seeds": [4],
            }
        )
        (area,) = (one for one in run(spec) if isinstance(one, Metric) and one.name == "area")
        yield f"rxnfp-bert, area, corruption {name}", f"{area.value:.1f} ± {area.std_err or 0:.1f}"


def _data(n: int, dim: int, latent_dim: int, seed: int) -> tuple[Array, Array, Array]:
    """Return the covariance of a PPCA, the published data, and data drawn from the model with the
    same latent variables."""
    torch.manual_seed(seed)
    loadings = torch.randn(dim, latent_dim).double().numpy()
    latent = torch.randn(n, latent_dim).double().numpy()
    shared = torch.randn(n, 1).double().numpy() / NOISE_PRECISION
    noise = np.random.default_rng(seed).normal(size=(n, dim)) / math.sqrt(NOISE_PRECISION)
    covariance = loadings @ loadings.T + np.eye(dim) / NOISE_PRECISION
    return covariance, latent @ loadings.T + shared, latent @ loadings.T + noise


def _log_density(covariance: Array, x: Array) -> Array:
    """Return log N(x | 0, covariance) of each row."""
    root = np.linalg.cholesky(covariance)
    z = np.linalg.solve(root, x.T)
    log_det = 2 * np.log(np.diag(root)).sum()
    densities: Array = -0.5 * ((z**2).sum(0) + log_det + len(covariance) * math.log(2 * math.pi))
    return densities


def _conditional(covariance: Array, x: Array, masked: Array, seen: Array, sign: int) -> Array:
    """Return log p(x_j | x_R) of each row and masked j, (N, m), with a sign in the variance."""
    cross = covariance[np.ix_(masked, seen)]
    gain = np.linalg.solve(covariance[np.ix_(seen, seen)], cross.T).T if len(seen) else cross
    variance = covariance[masked, masked] + sign * (gain * cross).sum(1)
    residual = x[:, masked] - x[:, seen] @ gain.T
    log_probs: Array = -0.5 * (np.log(2 * math.pi * variance) + residual**2 / variance)
    return log_probs


def _cumulative(covariance: Array, x: Array, seed: int, sign: int) -> float:
    """Return the sum over sizes of the score of one mask each, drawn in the published order."""
    dim = len(covariance)
    torch.manual_seed(seed)
    orders = [torch.randperm(dim).numpy() for _ in range(dim)]
    parts = ((order[:m], order[m:]) for m, order in enumerate(orders, 1))
    return float(sum(_conditional(covariance, x, *part, sign).mean() for part in parts))


Grid = tuple[torch.Tensor, torch.Tensor]
"""Nodes (G, 2), and the logarithms of their weights (G,), which sum to 1."""


def _uniform_grid(nodes: int) -> Grid:
    axis = torch.linspace(-6, 6, nodes, dtype=torch.float64)
    z = torch.cartesian_prod(axis, axis)
    return z, torch.log_softmax(-0.5 * (z**2).sum(1), dim=0)


def _gauss_hermite(nodes: int) -> Grid:
    at, weights = (torch.from_numpy(one) for one in np.polynomial.hermite_e.hermegauss(nodes))
    logs = torch.log(weights / weights.sum())
    return torch.cartesian_prod(at, at), torch.cartesian_prod(logs, logs).sum(1)


def _fitted(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights (D, 2) and biases (D,) after 300 steps of Adam on the LML of a grid."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(x.shape[1], 2, generator=generator, dtype=torch.float64) * 0.1
    bias = torch.zeros(x.shape[1], dtype=torch.float64)
    parameters = [weights.requires_grad_(), bias.requires_grad_()]
    optimizer = torch.optim.Adam(parameters, lr=0.05)
    z, log_weights = _uniform_grid(40)
    for _ in range(300):
        logits = z @ weights.T + bias
        joint = logits @ x.T - torch.nn.functional.softplus(logits).sum(1, keepdim=True)
        loss = -torch.logsumexp(joint + log_weights[:, None], dim=0).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weights.detach(), bias.detach()


def _log_likelihoods(
    x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor, grid: Grid
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log p(x_j | z) at every node, (G, N, D) for the first 100 rows, and the grid's
    weights."""
    z, log_weights = grid
    logits = z @ weights.T + bias
    signs = 2 * x[:100] - 1
    return torch.nn.functional.logsigmoid(logits[:, None, :] * signs), log_weights


def _lml(per_pixel: torch.Tensor, log_weights: torch.Tensor) -> float:
    return float(torch.logsumexp(per_pixel.sum(2) + log_weights[:, None], dim=0).mean())


def _mpt(per_pixel: torch.Tensor, log_weights: torch.Tensor) -> float:
    """Return the mean over seeds of the sum over sizes of the score of one mask each."""
    dim = per_pixel.shape[2]
    totals = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        total = 0.0
        for m in range(1, dim + 1):
            order = torch.randperm(dim)
            masked, seen = order[:m], order[m:]
            given = per_pixel[:, :, seen].sum(2) + log_weights[:, None]
            posterior = torch.log_softmax(given, dim=0)
            total += float(
                torch.logsumexp(per_pixel[:, :, masked] + posterior[:, :, None], 0).mean()
            )
        totals.append(total)
    return fmean(totals)


if __name__ == "__main__":
    main()
