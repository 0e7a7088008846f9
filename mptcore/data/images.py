"""MNIST and Fashion-MNIST, read by torchvision."""

import hashlib
import os

import torch

from mptcore.data.dataset import Dataset
from mptcore.data.vision import torchvision_datasets
from mptcore.protocol.records import RunError
from mptcore.runtime import inputs
from mptcore.specs import FashionMnistData, MnistData


def images(spec: MnistData | FashionMnistData, generator: torch.Generator) -> Dataset:
    """Return the training images as rows of 784 pixels, 0 to 1, in float32. They are multiples of
    1/255; computations with them use float64."""
    pixels = _pixels(spec)
    if spec.n < len(pixels):
        pixels = pixels[torch.randperm(len(pixels), generator=generator)[: spec.n]]
    return Dataset(pixels.flatten(1).to(torch.float32) / 255)


def _pixels(spec: MnistData | FashionMnistData) -> torch.Tensor:  # (60000, 28, 28), uint8
    folder = os.environ.get("MPT_DATA_DIR")
    allowed = os.environ.get("MPT_ALLOW_DOWNLOAD") == "1"
    if not folder:
        raise RunError("invalid", f"{spec.source} is read from MPT_DATA_DIR, which is not set")
    source = getattr(torchvision_datasets(), spec.class_name)
    try:
        pixels: torch.Tensor = source(folder, train=True, download=allowed).data
    except RuntimeError as error:
        if "Dataset not found" not in str(error):
            raise
        cure = "put it there, or set MPT_ALLOW_DOWNLOAD=1"
        raise RunError("invalid", f"MPT_DATA_DIR has no {spec.source}: {cure}") from error
    place = f"MPT_DATA_DIR/{spec.class_name}, the pixels of its training images"
    inputs.note_used(place, hashlib.sha256(pixels.numpy().tobytes()).hexdigest())
    return pixels
