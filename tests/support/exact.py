"""The scores of a low-rank Gaussian in fifty digits, from the definition and W, psi, x as they
are stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
from torch import Tensor

mpmath.mp.dps = 50
Row = list[Any]


@dataclass(frozen=True)
class Exact:
    """x (N, D) about their mean, W (D, K) and psi (D,), as numbers of fifty digits."""

    x: list[Row]
    loadings: list[Row]
    noise: Row

    @classmethod
    def of(cls, x: Tensor, mean: Tensor, loadings: Tensor, noise: Tensor) -> "Exact":
        centre = _exact(mean)
        rows = [[a - b for a, b in zip(_exact(row), centre, strict=True)] for row in x]
        return cls(rows, [_exact(row) for row in loadings], _exact(noise))

    def score(self, masked: Tensor) -> Any:
        """The mean over observations and masked j of log p(x_j | x_R), for one mask (D,)."""
        posterior, latent = self._given((~masked).nonzero().flatten().tolist())
        rows: Sequence[int] = masked.nonzero().flatten().tolist()
        total = mpmath.fsum(self._misfit(j, posterior, latent) for j in rows)
        return -total / 2 / len(rows)

    def log_prob(self, observed: Tensor) -> Any:
        """The mean over observations of log p(x_R), for R as a mask (D,), by the chain rule."""
        rows: Sequence[int] = observed.nonzero().flatten().tolist()
        given = (self._given(rows[:i]) for i in range(len(rows)))
        return -mpmath.fsum(self._misfit(j, *of) for j, of in zip(rows, given, strict=True)) / 2

    def _given(self, rows: Sequence[int]) -> tuple[Any, list[Any]]:
        """The covariance of z given x_R, and the mean of each observation's z."""
        dims = range(len(self.loadings[0]))
        precise = [[self.loadings[i][a] / self.noise[i] for i in rows] for a in dims]
        columns = [[self.loadings[i][a] for i in rows] for a in dims]
        information = mpmath.matrix(
            [[mpmath.fdot(p, c) + (a == b) for b, c in enumerate(columns)]
             for a, p in enumerate(precise)]
        )  # fmt: skip
        posterior = information**-1
        seen = [[x[i] for i in rows] for x in self.x]
        return posterior, [
            posterior * mpmath.matrix([mpmath.fdot(p, x) for p in precise]) for x in seen
        ]

    def _misfit(self, j: int, posterior: Any, latent: list[Any]) -> Any:
        """Return log 2π v_j + e_j / v_j."""
        loading = mpmath.matrix(self.loadings[j])
        variance = self.noise[j] + (loading.T * posterior * loading)[0]
        squares = [
            (x[j] - mpmath.fdot(loading, z)) ** 2 for x, z in zip(self.x, latent, strict=True)
        ]
        return mpmath.log(2 * mpmath.pi * variance) + mpmath.fsum(squares) / len(squares) / variance


def relative_error(found: float, exact: Any) -> float:
    """Return the error of a score relative to its size, or in nats if the size is below one nat."""
    return float(abs(mpmath.mpf(found) - exact) / max(1, abs(exact)))


def _exact(numbers: Tensor) -> Row:
    return [mpmath.mpf(number) for number in numbers.tolist()]
