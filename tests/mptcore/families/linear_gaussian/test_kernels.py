"""Compiled loops compute the scores of torch."""

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mptcore.estimation import kernels as kernels_of_masks
from mptcore.families.linear_gaussian import kernel_tables, step_gradient
from mptcore.families.linear_gaussian import kernels as kernels_of_family
from mptcore.families.linear_gaussian.kernel_tables import MAX_LATENT_DIM
from mptcore.families.linear_gaussian.moment_solvers import (
    DenseSolver,
    FactoredSolver,
    MomentSolver,
)
from mptcore.families.linear_gaussian.moments import DenseMoment, FactoredMoment
from mptcore.families.linear_gaussian.solver import ScoreGradient
from mptcore.runtime.compiled import kernels

SHAPES = [(1, 1, 1), (5, 1, 1), (7, 3, 2), (33, 5, 6), (64, 2, 3), (200, 5, 6), (530, 2, 3)]


def model_of(dim: int, latent_dim: int, rank: int) -> FactoredSolver:
    generator = torch.Generator().manual_seed(dim)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    noise = 0.05 + torch.rand(dim, generator=generator, dtype=torch.float64)
    loadings, factor = drawn(dim, latent_dim), drawn(dim, rank) / math.sqrt(rank)
    moment = FactoredMoment(factor, factor.square().sum(1) + 1e-3)
    return FactoredSolver(loadings, noise, moment)


def model_of_full_rank(dim: int, latent_dim: int) -> DenseSolver:
    generator = torch.Generator().manual_seed(dim)
    x = torch.randn(2 * dim, dim, generator=generator, dtype=torch.float64)
    model = model_of(dim, latent_dim, 1)
    return DenseSolver(model.loadings, model.noise_variance, DenseMoment(x.T @ x / (2 * dim)))


def masks_for(dim: int, count: int = 300) -> Tensor:
    """Masks of all sizes, in a random order."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.rand(count, dim, generator=generator)
    sizes = torch.randint(1, dim + 1, (count, 1), generator=generator)
    sizes[:2, 0] = torch.tensor([1, dim])
    return keys.argsort(1) < sizes


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", SHAPES, ids="D{0[0]}K{0[1]}Q{0[2]}".format)
def test_scores_are_those_of_torch(shape: tuple[int, int, int]) -> None:
    model, masks = model_of(*shape), masks_for(shape[0])
    assert model.tables is not None
    expected = model.scores_by_torch(masks)
    torch.testing.assert_close(model.tables.scores(masks), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(model.scores(masks), model.tables.scores(masks), rtol=0, atol=0)


@pytest.mark.parametrize(
    "shape", [(1, 1), (7, 3), (33, 5), (200, 5), (390, 2), (64, 32), (600, 4)], ids=str
)
def test_scores_by_a_moment_of_full_rank_are_those_of_torch(shape: tuple[int, int]) -> None:
    model, masks = model_of_full_rank(*shape), masks_for(shape[0])
    assert model.tables is not None
    expected = model.scores_by_torch(masks)
    torch.testing.assert_close(model.tables.scores(masks), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model.scores(masks), model.tables.scores(masks), rtol=0, atol=0)


@pytest.mark.parametrize(
    "model", [model_of(33, 5, 6), model_of_full_rank(33, 5)], ids=["low", "full"]
)
def test_scores_do_not_depend_on_threads_or_on_other_masks(model: MomentSolver) -> None:
    masks = masks_for(33, 1001)
    alone = torch.cat([model.scores(mask[None]) for mask in masks])
    assert torch.equal(model.scores(masks), alone)


@pytest.mark.usefixtures("threads")
def test_scores_of_two_threads_are_those_of_one() -> None:
    model, masks = model_of(33, 5, 6), masks_for(33, 1001)
    together = model.scores(masks)
    torch.set_num_threads(1)
    assert torch.equal(together, model.scores(masks))


def test_a_batch_has_as_many_masks_as_their_work_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert model_of(200, 5, 6).efficient_batch == 2**25 // (6 * 200 + 8)
    assert model_of(200, 32, 6).efficient_batch == 2**28 // (200 * (16 * 33 + 32 * 6))
    assert model_of_full_rank(200, 5).efficient_batch == 2**28 // (5 * 200**2)
    monkeypatch.setattr(kernel_tables, "BATCH_PRODUCTS", 74)
    assert model_of_full_rank(5, 3).efficient_batch == 1  # 75 products, and at least one mask


def test_large_variances_do_not_overflow() -> None:
    """128 variances are multiplied before their logarithm is taken, or 32 if they are large."""
    loadings, zeros = 4e3 * torch.eye(200, 2).double() + 3e3, torch.zeros(200).double()
    factor = torch.ones(200, 1).double()
    moment = FactoredMoment(factor, factor[:, 0])
    large = FactoredSolver(loadings, zeros + 1, moment)
    masks = torch.arange(200) < torch.tensor([[200], [49]])  # many masked, and few
    assert large.tables is not None
    found, expected = large.tables.scores(masks), large.scores_by_torch(masks)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-8, atol=0)  # residuals cancel


def test_what_is_not_finite_is_left_to_torch() -> None:
    model = model_of(7, 3, 2)
    model.loadings[0] = math.nan
    with pytest.raises(torch.linalg.LinAlgError):  # type: ignore[attr-defined]
        model.scores(masks_for(7))


def test_wide_latent_spaces_are_left_to_torch() -> None:
    assert model_of(50, MAX_LATENT_DIM, 2).tables is not None
    assert model_of(50, MAX_LATENT_DIM + 1, 2).tables is None
    assert model_of_full_rank(50, MAX_LATENT_DIM).tables is not None
    wide = model_of_full_rank(50, MAX_LATENT_DIM + 1)
    assert wide.tables is None
    assert wide.efficient_batch > 1


def test_gradients_of_large_tables_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 dimensions, K = 2 and Q = 3: 12 · (3 + 6) products."""
    factor = torch.rand(1, 12, 3).double()
    moment = FactoredMoment(factor, factor.square().sum(-1) + 0.1)
    model = FactoredSolver(torch.rand(2, 12, 2).double(), torch.ones(2, 12).double(), moment)
    masks = masks_for(12).expand(2, -1, -1)
    monkeypatch.setattr(step_gradient, "MAX_STEP_TABLE", 108)
    assert model.score_gradient(masks, 300) is not None
    monkeypatch.setattr(step_gradient, "MAX_STEP_TABLE", 107)
    assert model.score_gradient(masks, 300) is None


def test_moments_too_large_to_copy_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tables, "MAX_DENSE_DIM", 49)
    assert model_of_full_rank(49, 2).tables is not None
    assert model_of_full_rank(50, 2).tables is None


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MPT_KERNELS", "torch")
    kernels.cache_clear()
    yield
    kernels.cache_clear()


@pytest.mark.usefixtures("without_numba")
def test_torch_computes_where_it_is_asked_to() -> None:
    assert model_of(7, 3, 2).tables is None


def gradient_of(model: FactoredSolver, masks: Tensor, count: int) -> ScoreGradient:
    gradient = model.score_gradient(masks, count)
    assert gradient is not None
    return gradient


@pytest.mark.parametrize("shared", [True, False], ids=["shared data", "own data"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (6, 2, 3), (10, 5, 2), (40, 3, 7)], ids=str)
def test_gradients_are_those_of_torch(shape: tuple[int, int, int], shared: bool) -> None:
    dim, latent_dim, rank = shape
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    factor = drawn(1 if shared else 2, dim, rank)
    moment = FactoredMoment(factor, factor.square().sum(-1) + 0.1)
    noise = 0.05 + torch.rand(2, dim, generator=generator, dtype=torch.float64)
    loadings = drawn(2, dim, latent_dim).requires_grad_()
    model = FactoredSolver(loadings, noise.requires_grad_(), moment)
    masks = masks_for(dim, 300).view(2, 150, dim)
    found, score = gradient_of(model, masks, 200), model.scores(masks).sum(-1) / 200
    score.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found.score, score.detach(), rtol=1e-12, atol=0)
    recorded = model.recorded_log_prob()
    torch.testing.assert_close(recorded, model.log_prob().detach(), rtol=1e-12, atol=0)
    expected = loadings.grad, noise.grad
    for one, other in zip((found.loadings, found.noise_variance), expected, strict=True):
        assert other is not None
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12 * float(other.abs().max()))


@pytest.mark.usefixtures("threads")
def test_gradients_of_two_threads_are_those_of_one() -> None:
    factor = torch.ones(1, 6, 1).double()
    moment, ones = FactoredMoment(factor, factor[..., 0]), torch.ones(2, 6).double()
    model = FactoredSolver(torch.eye(6, 2).double().expand(2, 6, 2), ones, moment)
    masks = masks_for(6, 2000).view(2, 1000, 6)
    together = gradient_of(model, masks, 1000)
    torch.set_num_threads(1)
    alone = gradient_of(model, masks, 1000)
    assert torch.equal(together.score, alone.score)
    assert torch.equal(together.loadings, alone.loadings)


FILES = [*Path(kernels_of_family.__path__[0]).glob("*.py"), Path(kernels_of_masks.__file__)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_rows_are_taken_by_their_index(file: Path) -> None:
    """Rows that are unpacked (`a, b = work`) are no contiguous arrays to numba, and loops over them
    are several times slower."""
    tree = ast.parse(file.read_text())
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    unpacked = [
        ast.unparse(one)
        for one in assignments
        if isinstance(one.targets[0], ast.Tuple)
        and not isinstance(one.value, ast.Tuple)
        and not ast.unparse(one.value).endswith(".shape")
    ]
    assert unpacked == []
