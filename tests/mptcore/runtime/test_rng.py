"""Draws from random number generators."""

import pytest
import torch

from mptcore.runtime.rng import draw_normal, draw_uniform


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_have_the_precision_of_the_data(dtype: torch.dtype) -> None:
    like = torch.zeros(1, dtype=dtype)
    drawn, uniform = (
        draw((3, 1000), like, torch.Generator().manual_seed(1))
        for draw in (draw_normal, draw_uniform)
    )
    assert drawn.dtype == uniform.dtype == dtype
    assert drawn.shape == uniform.shape == (3, 1000)
    assert drawn.min() < 0
    assert 0 <= uniform.min() < 0.01
    assert 0.99 < uniform.max() < 1
