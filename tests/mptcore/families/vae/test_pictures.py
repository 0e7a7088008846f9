"""The pictures that a run leaves, pixel by pixel."""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.families.vae.pictures import SCALE, SHOWN, pictures
from mptcore.families.vae.trainer import TrainingStart
from mptcore.runtime.rng import generator_for

DIM, SIDE = 16, 4


def start_of(x: Tensor, heldout: Tensor | None = None) -> TrainingStart:
    """A model that expects −9 for masked pixels, and whose samples have the value 3 everywhere."""

    def reconstruction(x: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
        return torch.where(masked, -9.0, x)

    def decoder(z: Tensor) -> Tensor:
        assert z.shape == (5 * SHOWN, 2)
        assert abs(float(z.mean())) < 0.5
        return torch.full((len(z), DIM), 1.5)

    vae: Any = SimpleNamespace(
        reconstruction=reconstruction,
        decoder=decoder,
        latent_dim=2,
        likelihood=SimpleNamespace(mean=lambda outputs: 2 * outputs),
    )
    return TrainingStart(7, "elbo", {"seed": 7}, vae, Dataset(x), x, heldout)


def tiles(file: Path) -> list[list[list[int]]]:
    """The shades of each image, row by row, (R, C, D), of a picture that is not enlarged."""
    pixels = np.asarray(Image.open(file))[::SCALE, ::SCALE]
    rows, columns = (size // SIDE for size in pixels.shape)
    found = pixels.reshape(rows, SIDE, columns, SIDE).transpose(0, 2, 1, 3)
    shades: list[list[list[int]]] = found.reshape(rows, columns, DIM).tolist()
    return shades


def test_a_picture_shows_originals_masked_images_and_expectations(tmp_path: Path) -> None:
    """The smallest value is black, the largest white; masked pixels are grey."""
    x = torch.arange(12 * DIM).float().view(12, DIM) % 5 - 1  # from −1 to 3
    reconstructions, samples = pictures(start_of(x), tmp_path / "new")
    assert [one.file for one in (reconstructions, samples)] == [
        "reconstructions-elbo.png", "samples-elbo.png"
    ]  # fmt: skip
    content = (tmp_path / "new" / reconstructions.file).read_bytes()
    assert reconstructions.sha256 == hashlib.sha256(content).hexdigest()
    assert reconstructions.media_type == samples.media_type == "image/png"
    masked = torch.rand(DIM, generator=generator_for(7, "pictures")) < 0.5
    assert 0 < int(masked.sum()) < DIM
    shown = ((x[:SHOWN] + 1) / 4 * 255).round().int()
    whole, seen, expected = tiles(tmp_path / "new" / reconstructions.file)
    assert whole == shown.tolist()
    assert seen == torch.where(masked, 128, shown).tolist()  # 127.5 is rounded to an even number
    assert expected == torch.where(masked, 0, shown).tolist()
    assert tiles(tmp_path / "new" / samples.file) == [[[255] * DIM] * SHOWN] * 5


def test_heldout_images_are_shown_if_there_are_any(tmp_path: Path) -> None:
    x = torch.tensor([[0.0, 1.0] * 8]).repeat(12, 1)
    heldout = torch.full((3, DIM), 1.0)
    reconstructions, _ = pictures(start_of(x, heldout), tmp_path)
    assert tiles(tmp_path / reconstructions.file)[0] == [[255] * DIM] * 3


@pytest.mark.parametrize("dim", [15, 17])
def test_data_that_are_not_square_images_have_no_pictures(tmp_path: Path, dim: int) -> None:
    assert list(pictures(start_of(torch.zeros(12, dim)), tmp_path)) == []
    assert list(tmp_path.iterdir()) == []
