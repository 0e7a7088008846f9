"""Number of kernels, synchronizations and copies for a GPU. They are counted on a simulated GPU, so
that a number copied back inside a loop, or a mask copied separately, is found."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.estimation.masks import MaskBatch
from mptcore.estimation.model import Evidence, Model
from mptcore.estimation.scores import score_sizes
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.initial import random_density
from mptcore.families.linear_gaussian.routes import solver_for
from mptcore.families.linear_gaussian.trainer import LinearGaussianTrainer
from mptcore.families.vae.grid import GridVae
from mptcore.families.vae.likelihoods import BernoulliLikelihood
from mptcore.families.vae.networks import linear_decoder
from mptcore.runtime.state import RunState
from mptcore.specs import PpcaModel, Train, UniformGrid
from mptlab_contract import records
from mptlab_contract.pretended_gpu import DEVICE, pretended_gpu
from tests.support.runs import spec_of

CPU = torch.device("cpu")
DIM = 12


def gaussian(observations: int) -> Model:
    draws = torch.Generator().manual_seed(1)
    loadings = torch.randn(DIM, 2, generator=draws, dtype=torch.float64)
    noise = torch.full((DIM,), 0.2, dtype=torch.float64)
    x = torch.randn(observations, DIM, generator=draws, dtype=torch.float64)
    return solver_for(LowRankGaussian(loadings, x.mean(0), noise), x, DEVICE)


def grid_vae() -> Model:
    grid = UniformGrid(method="uniform_grid", nodes=5)
    vae = GridVae(None, linear_decoder(DIM, 2), BernoulliLikelihood(), 2, grid)
    x = (torch.arange(9 * DIM).view(9, DIM) % 3 == 0).float().to(DEVICE)
    return vae.to(x).scored_on(x, 4, Evidence(0.0))


def masks(count: int) -> Tensor:
    return torch.rand(count, DIM, generator=torch.Generator().manual_seed(2)) < 0.5


def asked_for_masks(make: Callable[[], Model], count: int) -> dict[str, int]:
    """Return the GPU work of one batch after the model has scored another batch."""
    batch = MaskBatch([(3, count)], masks(count))
    with pretended_gpu() as gpu:
        model = make()
        for _ in range(2):
            gpu.reset()
            [*score_sizes([model], [batch], RunState())]
        return gpu.asked


@pytest.mark.parametrize(("observations", "launches"), [(60, 37), (5, 29)])
def test_a_batch_of_masks_for_a_gaussian(observations: int, launches: int) -> None:
    """The number does not depend on the size. One synchronisation copies the scores, one is
    Cholesky's."""
    found = asked_for_masks(lambda: gaussian(observations), 64)
    assert found["launches"] <= launches
    assert found["synchronisations"] <= 2
    assert (found["to_device"], found["waited"], found["to_host"]) == (1, 0, 1)
    assert asked_for_masks(lambda: gaussian(observations), 4) == found


def test_the_next_masks_of_vectors_are_drawn_while_the_device_has_work() -> None:
    """The scores of two models are fetched after both were launched."""
    fetched: list[int] = []

    def drawn() -> Iterator[MaskBatch]:
        for _ in range(3):
            fetched.append(gpu.to_host)
            yield MaskBatch([(3, 16)], masks(16))

    with pretended_gpu() as gpu:
        models = [gaussian(60), gaussian(5)]
        gpu.reset()
        [*score_sizes(models, drawn(), RunState(), joint=True)]
    assert fetched == [0, 0, 2]
    assert (gpu.to_host, gpu.to_device, gpu.waited) == (6, 6, 0)


def test_a_gpu_scores_four_times_as_many_masks_by_the_same_launches(tmp_path: Path) -> None:
    """A batch of the size of a CPU's caches is too small for a GPU: here 160 masks of 768."""
    found = []
    for per_size in (4, 16):
        spec = {
            "model": {"family": "ppca", "latent_dim": 12, "noise_precision": 5.0, "init": "random"},
            "data": {
                "source": "ppca",
                "n": 100,
                "dim": 48,
                "latent_dim": 4,
                "noise_precision": 5.0,
            },
            "evaluate": {"masks": {"schedule": "all", "per_size": per_size}},
            "compute": {"device": "cuda", "threads": 1},
        }
        with pretended_gpu() as gpu:
            records(spec_of(spec), tmp_path / str(per_size))
        found.append(gpu.asked)
    assert found[0] == found[1]


def test_a_batch_of_masks_for_a_grid() -> None:
    """The number does not depend on the size. One synchronisation checks for rounding."""
    found = asked_for_masks(grid_vae, 16)
    assert found["launches"] <= 33
    assert found["synchronisations"] == 2
    assert (found["to_device"], found["to_host"]) == (1, 1)
    assert asked_for_masks(grid_vae, 4) == found


def gaussian_trainer(
    dim: int = DIM, device: torch.device = DEVICE, **changes: Any
) -> LinearGaussianTrainer:
    """Trainer of two starts, each on separate data."""
    spec = Train.model_validate({"epochs": 4, "batch_size": 5, **changes})
    draws = torch.Generator().manual_seed(1)
    data = [Dataset(torch.randn(20, dim, generator=draws)) for _ in range(2)]
    model = PpcaModel(family="ppca", latent_dim=4, noise_precision=5.0, init="random")
    starts = [random_density(model, one, draws) for one in data]
    return LinearGaussianTrainer(model, spec, (1, 2), starts, data, device)


@pytest.mark.parametrize(("dim", "batch_size"), [(DIM, 5), (DIM, 15), (80, 5), (150, None)])
def test_whatever_the_form_of_its_moment_a_step_is_that_of_a_cpu(
    dim: int, batch_size: int | None
) -> None:
    def trained(device: torch.device) -> list[float | None]:
        trainer = gaussian_trainer(dim, device, batch_size=batch_size, learn_noise_precision=True)
        return [point.value for _ in range(2) for point in trainer.advance()[0][0]]

    expected = trained(CPU)
    with pretended_gpu():
        assert trained(DEVICE) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("learn_mean", [False, True])
def test_a_gaussian_step_with_too_little_memory_has_the_same_gradient(
    learn_mean: bool,
) -> None:
    """Check the analytic gradient and the gradient of autograd."""
    with pretended_gpu() as gpu:
        found = []
        for most in (None, 1000):  # all masks, and the results of a part
            trainer = gaussian_trainer(
                learn_mean=learn_mean,
                learn_noise_precision=True,
                masks={"schedule": "all", "per_size": 3},
            )
            gpu.most_numbers = most
            loss = trainer._descent(next(trainer._batches()), 0).cpu()
            assert (gpu.refused > 0) == (most == 1000)
            gpu.most_numbers = None
            found.append([loss, *(one.grad.cpu() for one in trainer.parameters.values())])
        torch.testing.assert_close(found[0], found[1])
        gpu.most_numbers, gpu.refused = 1000, 0
        trainer.advance()
        assert gpu.refused == 0
        gpu.most_numbers = 20
        with pytest.raises(torch.OutOfMemoryError):
            trainer.advance()


def test_scores_with_too_little_memory_are_the_same() -> None:
    batch = MaskBatch([(3, 32)], masks(32))
    with pretended_gpu() as gpu:
        model, found = gaussian(60), []
        for gpu.most_numbers in (None, 700):
            _, scores = score_sizes([model], [batch], RunState())
            assert scores is not None
            found.append(scores.values)
    torch.testing.assert_close(found[1], found[0])


def test_a_batch_size_that_did_not_fit_is_not_tried_again() -> None:
    """The model remembers the size for this batch and for later batches."""
    batches = [MaskBatch([(3, 32)], masks(32)) for _ in range(4)]
    with pretended_gpu() as gpu:
        model = gaussian(60)
        gpu.most_numbers = 700
        [*score_sizes([model], batches, RunState())]
    assert gpu.refused == 1
