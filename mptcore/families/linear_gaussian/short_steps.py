"""Train several epochs at once by compiled loops, if their steps are short: the calls of Python and
torch for a single step would take longer than the step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mptcore.families.linear_gaussian.moments import FactoredMoment
from mptcore.families.linear_gaussian.rounding import LIMIT
from mptcore.families.linear_gaussian.step_gradient import KERNELS, fits_kernel
from mptcore.runtime.compiled import kernels, run_in_threads

Doubles = NDArray[np.float64]

MAX_EPOCHS = 64
"""Maximum number of epochs at once."""
MAX_WORK = 2**24
"""Maximum number of products of all dimensions and masks in the epochs at once, so that they take
less than a tenth of a second if there are few starts. A run can only be saved between them."""
MAX_WORK_OF_START = 2**19
"""Maximum number of them in an epoch of a start, because a start is trained by one thread. The
limit does not depend on threads or other starts, and so neither do the last digits."""


def epochs_at_once(loadings: Tensor, moment: FactoredMoment, masks_per_step: int) -> int:
    """Return for how many epochs at once it is faster to train loadings (S, D, K) by compiled
    loops. 0 if these cannot be used."""
    if not fits_kernel(loadings, moment.factor):
        return 0
    starts, dim, latent_dim = loadings.shape
    table = latent_dim * (latent_dim + 1) // 2 + latent_dim * moment.factor.shape[-1]
    work = masks_per_step * dim * table
    if work > MAX_WORK_OF_START:
        return 0
    return min(MAX_EPOCHS, max(2, MAX_WORK // (starts * work)))


@dataclass(frozen=True)
class ShortSteps:
    """Parameters of S starts with Adam's moments, which steps change in place, and the moments of
    their observations."""

    loadings: Tensor  # (S, D, K)
    log_noise: Tensor  # (S, 1 or D)
    adam: torch.optim.Adam
    data: FactoredMoment
    heldout: FactoredMoment | None

    def keep_digits(self) -> bool:
        """Return whether rounding allows a step."""
        loops = _loops()
        _, diagonals = _arrays(self.data)
        noise = self.log_noise.detach().exp().expand(self.loadings.shape[:2]).contiguous().numpy()
        starts = zip(self.loadings.detach().numpy(), noise, strict=True)
        errors = [
            loops.rounding(loadings, variances, _of_start(diagonals, s))
            for s, (loadings, variances) in enumerate(starts)
        ]
        return bool(max(errors) <= LIMIT)

    def take(
        self, masks: Tensor, epoch: int, every: int, others: Sequence[Callable[[], None]]
    ) -> Doubles:
        """Take the steps of E epochs with masks (S, E, B, D), and make other calls in the same
        threads. Return the mean score, log p of the data, and of held-out observations, (S, 3, E);
        log p for every `every`-th epoch. There are fewer epochs if rounding forbids a step."""
        changed = self._changed()
        before = [array.copy() for array in changed]
        masked = masks.numpy()
        curves, taken = self._take(changed, masked, epoch, every, others)
        if taken < masked.shape[1]:
            for array, old in zip(changed, before, strict=True):
                array[:] = old
            masked = np.ascontiguousarray(masked[:, :taken])
            curves, _ = self._take(changed, masked, epoch, every, [])
        for state in self.adam.state.values():
            state["step"] += taken
        return curves

    def _take(
        self,
        changed: Sequence[Doubles],
        masked: NDArray[np.bool_],
        epoch: int,
        every: int,
        others: Sequence[Callable[[], None]],
    ) -> tuple[Doubles, int]:
        """Return also the smallest number of epochs of a start."""
        loops = _loops()
        starts, epochs = masked.shape[:2]
        group = self.adam.param_groups[0]
        rates = np.array([group["lr"], *group["betas"], group["eps"]])
        step = int(self.adam.state[self.loadings]["step"])
        data, heldout = _arrays(self.data), _arrays(self.heldout or _NONE)
        curves, taken = np.full((starts, 3, epochs), np.nan), [0] * starts

        def train(s: int) -> None:
            arrays = [array[s] for array in changed]
            moments = [_of_start(array, s) for array in (*data, *heldout)]
            learns_noise = self.log_noise.requires_grad
            taken[s] = loops.train_steps(
                *arrays,
                learns_noise,
                *moments,
                masked[s],
                epoch,
                every,
                step,
                rates,
                LIMIT,
                curves[s],
            )

        run_in_threads([*(partial(train, s) for s in range(starts)), *others])
        return curves, min(taken)

    def _changed(self) -> list[Doubles]:
        """Return what steps change: both parameters, each with its two moments."""
        arrays = []
        for parameter in (self.loadings, self.log_noise):
            state = self.adam.state.get(parameter)
            zeros = torch.zeros_like(parameter), torch.zeros_like(parameter)
            moments = zeros if state is None else (state["exp_avg"], state["exp_avg_sq"])
            arrays += [tensor.detach().numpy() for tensor in (parameter, *moments)]
        return arrays


_NONE = FactoredMoment(torch.empty(1, 0, 0).double(), torch.empty(1, 0).double())


def _loops() -> ModuleType:
    compiled = kernels(KERNELS)
    assert compiled is not None
    return compiled


def _arrays(moment: FactoredMoment) -> tuple[Doubles, Doubles]:
    return moment.factor.contiguous().numpy(), moment.diagonal.contiguous().numpy()


def _of_start(arrays: Doubles, start: int) -> Doubles:
    """Return the array of a start, which may be the same for all."""
    array: Doubles = arrays[start % len(arrays)]
    return array
