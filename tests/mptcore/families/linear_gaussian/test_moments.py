"""Second moments of data, and their rank."""

import pytest
import torch
from torch import Tensor

from mptcore.families.linear_gaussian.moments import (
    DenseMoment,
    FactoredMoment,
    compressed,
    data_factor,
    moment_of,
    rows_factor,
    second_moment,
    stacked,
    variances,
)

DIM = 6


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_all_forms_of_a_moment_give_the_same_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check also rows that are processed in several parts."""
    monkeypatch.setattr("mptcore.families.linear_gaussian.moments.ROWS", 100)
    x, mean = normal(300, DIM) + 3, normal(DIM, seed=9)
    expected = (x - mean).mT @ (x - mean) / len(x)
    assert torch.allclose(second_moment(x.float(), mean), expected, rtol=1e-5)
    assert second_moment(x.float(), mean).dtype == torch.float64
    assert torch.allclose(variances(x, mean), expected.diagonal())
    for factor in (data_factor(x, mean), rows_factor(x, mean)):
        assert torch.allclose(factor @ factor.mT, expected)
    assert data_factor(x, mean).shape == (DIM, DIM)
    assert rows_factor(x, mean).shape == (DIM, len(x))
    both = second_moment(torch.stack([x, 2 * x]), torch.stack([mean, 2 * mean]))
    assert torch.allclose(both, torch.stack([expected, 4 * expected]))


def test_a_moment_is_factored_where_its_rank_is_low() -> None:
    low = normal(12, 3)
    matrix = low @ low.mT
    found = compressed(matrix, 1.0)
    assert isinstance(found, FactoredMoment)
    assert found.factor.shape[1] <= 4
    assert torch.allclose(found.factor @ found.factor.mT, matrix)
    assert torch.allclose(found.diagonal, matrix.diagonal())
    noisy = compressed(matrix + 1e-6 * torch.eye(12), 1.0)
    assert isinstance(noisy, DenseMoment)
    assert torch.equal(noisy.diagonal, (matrix + 1e-6 * torch.eye(12)).diagonal())
    assert isinstance(compressed(matrix + 1e-6 * torch.eye(12), 1e6), FactoredMoment)
    x = normal(4, 12, seed=5)
    few = moment_of(x, torch.zeros(12, dtype=torch.float64), 1e-12)
    assert isinstance(few, FactoredMoment)
    assert few.factor.shape == (12, 4)
    many = moment_of(normal(5, 12, seed=5), torch.zeros(12, dtype=torch.float64), 1e-12)
    assert isinstance(many, DenseMoment)


def test_moments_of_several_ranks_are_stacked() -> None:
    one, other = (FactoredMoment(normal(4, q), normal(4, seed=q)) for q in (1, 3))
    found = stacked([one, other])
    assert found.factor.shape == (2, 4, 3)
    assert torch.equal(found.factor[0, :, :1], one.factor)
    assert found.factor[0, :, 1:].abs().max() == 0
    assert torch.equal(found.factor[1], other.factor)
    assert torch.equal(found.diagonal, torch.stack([one.diagonal, other.diagonal]))


def test_moments_are_moved_to_another_precision() -> None:
    like = torch.zeros(1, dtype=torch.float32)
    moment = FactoredMoment(normal(4, 2), normal(4)).to(like)
    assert (moment.factor.dtype, moment.diagonal.dtype) == (torch.float32, torch.float32)
    assert DenseMoment(normal(4, 4)).to(like).matrix.dtype == torch.float32
