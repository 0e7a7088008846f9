"""Gradient of a training step's score by compiled loops. Elsewhere torch differentiates."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mptcore.families.linear_gaussian.kernel_tables import MAX_LATENT_DIM, products
from mptcore.families.linear_gaussian.solver import ScoreGradient
from mptcore.runtime.compiled import kernels, parallel_ranges

KERNELS = "mptcore.families.linear_gaussian.kernels.train"
PART = 128
"""Number of masks of a start whose gradients are added first, so that the order is fixed."""
MAX_STEP_TABLE = 2**16
"""Maximum number of products in the table of a start. Its derivatives must fit in a cache too."""
MIN_MASKS = 64
"""Minimum number of masks that are worth a thread."""


def fits_kernel(loadings: Tensor, factor: Tensor) -> bool:
    """Return whether compiled loops take the steps of stacked models, and are faster."""
    is_small = loadings.shape[-1] <= MAX_LATENT_DIM and products(loadings, factor) <= MAX_STEP_TABLE
    return is_small and loadings.device.type == "cpu" and kernels(KERNELS) is not None


def log_probs(model: tuple[Tensor, ...]) -> Tensor:  # (S,)
    """Return the mean over observations of log p(x) by stacked models: loadings (S, D, K), noise
    variance (S, D), factor (S or 1, D, Q) and diagonal (S or 1, D) of the moment."""
    compiled = kernels(KERNELS)
    assert compiled is not None
    values = torch.empty(len(model[0]), dtype=torch.float64)
    compiled.log_probs(*_arrays(model), values.numpy())
    return values


def score_gradient(model: tuple[Tensor, ...], masks: Tensor, count: int) -> ScoreGradient:
    """Return the score and its gradient for stacked models, as in `log_probs`, and their masks (S,
    B, D). The score is a mean over `count` masks in all."""
    compiled = kernels(KERNELS)
    assert compiled is not None
    starts, per_start, dim = masks.shape
    parts = -(-per_start // PART)
    scores = torch.empty(starts * parts, dtype=torch.float64)
    loadings = scores.new_empty(starts * parts, dim, model[0].shape[-1])
    noise = scores.new_empty(starts * parts, dim)
    arrays = [*_arrays(model), masks.contiguous().numpy()]
    outputs = scores, loadings, noise
    of_parts = [tensor.numpy() for tensor in outputs]

    def part(first: int, end: int) -> None:
        compiled.score_gradients(*arrays, count, PART, first, end, *of_parts)

    parallel_ranges(part, len(scores), -(-MIN_MASKS // min(PART, per_start)))
    sums = [tensor.view(starts, parts, *tensor.shape[1:]).sum(1) for tensor in outputs]
    return ScoreGradient(*sums)


def _arrays(tensors: tuple[Tensor, ...]) -> list[NDArray[np.float64]]:
    return [tensor.detach().contiguous().numpy() for tensor in tensors]
