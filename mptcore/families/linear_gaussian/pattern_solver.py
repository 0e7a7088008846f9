"""Scores of observations with missing values."""

from collections.abc import Callable
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor

from mptcore.families.linear_gaussian.moments import patterns_of
from mptcore.families.linear_gaussian.solver import Solver


class Pattern(NamedTuple):
    """Observations with the same observed dimensions O."""

    observed: Tensor  # (D,)
    share: float
    """Share of all observations."""
    solver: Solver
    """The marginal of O with these observations. Copies of it are used, because the tables of all
    patterns would fill memory."""


class PatternSolver(Solver):
    """A density with data that have missing values: dimensions that are always masked and never
    scored.

    The score of a mask M is the mean over observations of

        (|O| + 1) / (D + 1) · mean over j in M ∩ O of log p(x_j | x_R), R = O outside M,

    and 0 for observations with nothing in M ∩ O. A mask of uniform size k of O comes from the
    masks of all sizes of D with total weight (D + 1) / (|O| + 1), whatever k is. So the scores sum
    over all sizes to the mean of log p(x_O), Eq. (5) of the paper for each observation's own O.
    """

    def __init__(
        self,
        x: Tensor,  # (N, D), NaN where a value is missing
        solver_of: Callable[[Tensor, Tensor], Solver],
        device: torch.device,
    ):
        """`solver_of` returns the solver of observed dimensions (D,) and their values."""
        self.device = device
        observed, pattern_of = patterns_of(x)
        rows = torch.split(pattern_of.argsort(stable=True), pattern_of.bincount().tolist())
        self.patterns = [
            Pattern(dims, len(indices) / len(x), solver_of(dims, x[indices][:, dims]))
            for dims, indices in zip(observed, rows, strict=True)
        ]
        notes = (pattern.solver.note for pattern in self.patterns)
        self.note = next((note for note in notes if note), None)

    @property
    def dim(self) -> int:
        return len(self.patterns[0].observed)

    @property
    def bytes_per_mask(self) -> int:
        return max(pattern.solver.bytes_per_mask for pattern in self.patterns)

    @property
    def efficient_batch(self) -> int:
        """Minimum number of masks for efficiency. Compiled loops need no minimum: all patterns
        together are enough work."""
        solvers = [pattern.solver for pattern in self.patterns]
        return max(1 if solver.fits_kernel else solver.efficient_batch for solver in solvers)

    def scores(self, masks: Tensor) -> Tensor:
        total = torch.zeros(len(masks), dtype=torch.float64, device=masks.device)
        for observed, share, solver in self.patterns:
            inside = masks[:, observed.to(masks.device)]
            scored = inside.any(1)
            weight = share * (inside.shape[1] + 1) / (self.dim + 1)
            total[scored] += weight * copy(solver).scores(inside[scored])
        return total

    def log_prob(self) -> Tensor:
        return torch.as_tensor(sum(share * solver.log_prob() for _, share, solver in self.patterns))

    def log_probs(self, observed: Tensor) -> Tensor:
        total = torch.zeros(len(observed), dtype=torch.float64, device=observed.device)
        for dims, share, solver in self.patterns:
            total += share * copy(solver).log_probs(observed[:, dims.to(observed.device)])
        return total
