"""Image data through torchvision."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from mptcore.data.dataset import Dataset, load_arrays
from mptcore.data.vision import torchvision_datasets
from mptcore.protocol.records import RunError
from mptcore.specs import FashionMnistData, MnistData

HAVE_DATA = Path(os.environ.get("MPT_DATA_DIR", "/nowhere"), "MNIST").is_dir()


def load(spec: Any) -> Dataset:
    return load_arrays(spec, spec.seed, torch.Generator().manual_seed(spec.seed))


@pytest.mark.skipif(not HAVE_DATA, reason="needs MNIST in MPT_DATA_DIR")
@pytest.mark.parametrize("kind", [MnistData, FashionMnistData])
def test_images_are_rows_of_pixels_from_0_to_1(kind: Any) -> None:
    source = "mnist" if kind is MnistData else "fashion_mnist"
    few = load(kind(source=source, n=100, seed=3, heldout=0.2))
    assert few.x.shape == (80, 784)
    assert few.heldout is not None
    assert few.heldout.shape == (20, 784)
    assert few.x.min() == 0
    assert few.x.max() == 1
    assert torch.equal(few.x, load(kind(source=source, n=100, seed=3, heldout=0.2)).x)
    assert not torch.equal(few.x, load(kind(source=source, n=100, seed=4, heldout=0.2)).x)


def test_the_error_for_missing_data_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPT_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("MPT_ALLOW_DOWNLOAD", raising=False)
    with pytest.raises(RunError, match="MPT_ALLOW_DOWNLOAD=1"):
        load(MnistData(source="mnist"))
    monkeypatch.delenv("MPT_DATA_DIR")
    with pytest.raises(RunError, match="MPT_DATA_DIR, which is not set"):
        load(MnistData(source="mnist"))


def test_torchvision_is_imported_with_any_torch_build() -> None:
    assert torchvision_datasets().MNIST
    assert torchvision_datasets().FashionMNIST
