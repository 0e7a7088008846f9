"""Arrays as a spec asks for them: simulated, chosen, binarized, standardized, held out."""

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.data import dataset
from mptcore.data.dataset import (
    Dataset,
    Scaling,
    binarized,
    images,
    load_arrays,
    scaling_of,
    standardized,
)
from mptcore.protocol.records import RunError
from mptcore.runtime import inputs
from mptcore.runtime.rng import generator_for
from mptcore.specs import DigitsData, FashionMnistData, MnistData, PpcaData, UploadData

X = torch.tensor([[0.0, 0.25], [0.5, 0.75], [1.0, 0.51]], dtype=torch.float64)


def upload(**options: Any) -> UploadData:
    return UploadData(source="upload", dataset="abc", n=3, dim=2, **options)


def test_a_threshold_is_above_the_middle_of_the_range() -> None:
    found = binarized(Dataset(X), upload(binarize="threshold"))
    assert found.x.tolist() == [[0, 0], [0, 1], [1, 1]]
    assert found.x.dtype == X.dtype
    digits = DigitsData(source="digits", binarize="threshold")
    assert binarized(Dataset(torch.tensor([[7.9, 8.0, 8.1]])), digits).x.tolist() == [[0, 0, 1]]


def test_a_stochastic_binarization_has_the_value_s_share_as_its_probability() -> None:
    x = torch.tensor([0.0, 4.0, 16.0]).expand(20_000, 3)
    spec = DigitsData(source="digits", binarize="stochastic", seed=5)
    found = binarized(Dataset(x), spec).x
    assert found.mean(0).tolist() == pytest.approx([0, 0.25, 1], abs=0.02)
    assert torch.equal(found, binarized(Dataset(x), spec).x)
    uniform = torch.rand(x.shape, generator=generator_for(5, "binarize"))
    assert torch.equal(found, (uniform < x / 16).to(x))


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_values_outside_the_range_are_not_binarized(value: float) -> None:
    x = X.clone()
    x[0, 0] = value
    with pytest.raises(RunError) as error:
        binarized(Dataset(x), upload(binarize="threshold"))
    least, largest = x.min().item(), x.max().item()
    told = f"data.binarize needs values from 0 to 1; these are from {least:.4g} to {largest:.4g}"
    assert str(error.value) == told
    assert error.value.cause == "invalid"


def test_all_values_are_standardized_alike() -> None:
    x = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    data = Dataset(x)
    found = standardized(data, scaling_of(data, by_column=False)).x
    assert found.dtype == x.dtype
    assert found.tolist() == [pytest.approx(row) for row in ((x - 4) / 5**0.5).tolist()]
    with pytest.raises(RunError, match=r"standardize needs values that are not all the same$"):
        scaling_of(Dataset(torch.ones(3, 2)), by_column=False)


@pytest.mark.parametrize("by_column", [True, False])
def test_held_out_observations_are_scaled_by_the_others(by_column: bool) -> None:
    x = torch.tensor([[1.0, 10.0], [3.0, 30.0], [500.0, 7.0]], dtype=torch.float64)
    data = Dataset(x[:2], heldout=x[2:])
    scaling = scaling_of(data, by_column)
    found = standardized(data, scaling)
    kept = x[:2].mean(0) if by_column else x[:2].mean()
    scale = x[:2].std(0, correction=0) if by_column else x[:2].std(correction=0)
    assert found.heldout is not None
    assert torch.allclose(found.heldout, (x[2:] - kept) / scale)
    assert torch.allclose(found.x, (x[:2] - kept) / scale)
    assert found.scaling is scaling


def test_a_scaling_of_other_dimensions_is_refused() -> None:
    scaling = Scaling(torch.zeros(3), torch.ones(3))
    with pytest.raises(RunError, match=r"standardized data of 3 dimensions, not 2$"):
        standardized(Dataset(X), scaling)


def simulated(noise: Any, precision: float) -> Dataset:
    spec = PpcaData(source="ppca", n=4000, dim=3, latent_dim=2, noise_precision=precision,
                    noise=noise)  # fmt: skip
    return load_arrays(spec, 0, torch.Generator().manual_seed(7))


@pytest.mark.parametrize("noise", ["isotropic", "shared"])
def test_simulated_data_have_the_requested_noise(noise: str) -> None:
    """Isotropic: a variance of 1/noise_precision, apart in each dimension. Shared: a standard
    deviation of 1/noise_precision, the same for all."""
    exact, noisy = simulated(noise, 1e12), simulated(noise, 4.0)
    assert noisy.parameters is not None
    assert exact.parameters is not None
    assert torch.equal(noisy.parameters["loadings"], exact.parameters["loadings"])
    assert noisy.parameters["loadings"].dtype == torch.float64
    assert noisy.parameters["mean"].tolist() == [0, 0, 0]
    assert noisy.parameters["noise_variance"].tolist() == [0.25] * 3
    gaps = (noisy.x - exact.x).double()
    assert gaps.mean().abs() < 0.05
    together = noise == "shared"
    assert gaps.std(0).tolist() == pytest.approx([0.25 if together else 0.5] * 3, rel=0.1)
    correlation = torch.corrcoef(gaps.T)[0, 1].item()
    assert correlation == pytest.approx(1.0 if together else 0.0, abs=0.05)


def test_heldout_rows_depend_on_the_seed_and_keep_their_order() -> None:
    data = Dataset(torch.arange(10.0)[:, None], {"mean": torch.zeros(1)})
    assert data.held_out(0, 3) is data
    found = data.held_out(4, 3)
    assert found.heldout is not None
    kept, aside = found.x.flatten().tolist(), found.heldout.flatten().tolist()
    assert (len(kept), len(aside)) == (6, 4)
    assert sorted(kept + aside) == list(range(10))
    assert kept == sorted(kept)
    assert aside == sorted(aside)
    assert torch.equal(found.x, data.held_out(4, 3).x)
    assert not torch.equal(found.x, data.held_out(4, 4).x)
    assert found.parameters is data.parameters


def test_digits_are_all_images_in_their_order() -> None:
    found = load_arrays(DigitsData(source="digits"), 0, torch.Generator())
    assert found.x.shape == (1797, 64)
    assert found.x[0, :8].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert [found.x.min().item(), found.x.max().item()] == [0, 16]
    assert found.heldout is None


PIXELS = torch.arange(6 * 4, dtype=torch.uint8).view(6, 2, 2) * 10


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool, bool]]:
    """Six images in place of torchvision's, and a list of the requests for them."""
    asked: list[tuple[str, bool, bool]] = []

    def source(name: str, pixels: Tensor) -> Any:
        def read(folder: str, train: bool, download: bool) -> Any:
            asked.append((folder, train, download))
            return SimpleNamespace(data=pixels)

        read.__name__ = name
        return read

    sets = SimpleNamespace(
        MNIST=source("MNIST", PIXELS), FashionMNIST=source("Other", 250 - PIXELS)
    )
    monkeypatch.setattr(dataset, "torchvision_datasets", lambda: sets)
    monkeypatch.setenv("MPT_DATA_DIR", "/data")
    monkeypatch.delenv("MPT_ALLOW_DOWNLOAD", raising=False)
    inputs.locate(None)
    return asked


def test_all_images_keep_their_order_and_some_are_chosen_at_random(
    torchvision: list[tuple[str, bool, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    rows = PIXELS.flatten(1).float() / 255
    for n in (6, 60_000):
        assert torch.equal(images(MnistData(source="mnist", n=n), generator).x, rows)
    assert torch.equal(generator.get_state(), state)
    some = images(MnistData(source="mnist", n=5), generator).x
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(some, rows[order[:5]])
    assert torchvision == [("/data", True, False)] * 3
    monkeypatch.setenv("MPT_ALLOW_DOWNLOAD", "1")
    images(MnistData(source="mnist"), generator)
    assert torchvision[-1] == ("/data", True, True)


def test_digest_of_images_depends_on_their_pixels(torchvision: object) -> None:
    other = images(FashionMnistData(source="fashion_mnist"), torch.Generator()).x
    assert torch.equal(other, (250 - PIXELS).flatten(1).float() / 255)
    digest = hashlib.sha256((250 - PIXELS).numpy().tobytes()).hexdigest()
    place = "MPT_DATA_DIR/FashionMNIST, the pixels of its training images"
    assert inputs.used() == {place: digest}


def test_each_column_has_mean_0_and_variance_1_over_its_observed_values() -> None:
    x = torch.tensor([[1.0, 1e6], [3.0, torch.nan], [5.0, 3e6]], dtype=torch.float64)
    data = Dataset(x)
    found = standardized(data, scaling_of(data, by_column=True)).x
    assert found[:, 0].tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])
    assert found[[0, 2], 1].tolist() == pytest.approx([-1, 1])
    assert found[1, 1].isnan()


@pytest.mark.parametrize(
    ("names", "told"),
    [(("a", "b"), "column b is constant: data."), (None, "column 1 is constant (counted from 0)")],
)
def test_a_constant_column_is_not_standardized(names: Any, told: str) -> None:
    x = torch.tensor([[1.0, 0.1], [3.0, 0.1], [2.0, 0.1]], dtype=torch.float64)
    assert Dataset(x).scale[1] != 0  # its mean is rounded
    with pytest.raises(RunError) as refused:
        scaling_of(Dataset(x, columns=names), by_column=True)
    assert told in str(refused.value)
