"""MNIST and Fashion-MNIST, read from the files that their authors publish."""

import gzip
import hashlib
import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import torch

from mptcore.data.dataset import Dataset
from mptcore.protocol.records import RunError
from mptcore.runtime import inputs
from mptcore.specs import FashionMnistData, MnistData

FILE = "train-images-idx3-ubyte"
IDX_IMAGES = 2051
"""The first number of an IDX file of images."""
HEADER_BYTES = 16
DOWNLOAD_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ImageSet:
    """A data set: its folder, where its file can be downloaded, and the SHA-256 of its content."""

    folder: str
    url: str
    sha256: str


SETS = {
    "mnist": ImageSet(
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "fashion_mnist": ImageSet(
        "FashionMNIST",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "483eee208b463125e151bab1e6dd377bca8d9d94b6364c77021e416e5d19e05b",
    ),
}


def images(spec: MnistData | FashionMnistData, generator: torch.Generator) -> Dataset:
    """Return the training images as rows of 784 pixels, 0 to 1, in float32. They are multiples of
    1/255; computations with them use float64."""
    pixels = _pixels(spec)
    if spec.n < len(pixels):
        pixels = pixels[torch.randperm(len(pixels), generator=generator)[: spec.n]]
    return Dataset(pixels.flatten(1).to(torch.float32) / 255)


def _pixels(spec: MnistData | FashionMnistData) -> torch.Tensor:  # (60000, 28, 28), uint8
    folder = os.environ.get("MPT_DATA_DIR")
    if not folder:
        raise RunError("invalid", f"{spec.source} is read from MPT_DATA_DIR, which is not set")
    known = SETS[spec.source]
    file = Path(folder, known.folder, "raw", FILE)
    if not file.exists():
        if os.environ.get("MPT_ALLOW_DOWNLOAD") != "1":
            cure = "put it there, or set MPT_ALLOW_DOWNLOAD=1"
            raise RunError("invalid", f"MPT_DATA_DIR has no {spec.source}: {cure}")
        _download(known, file)
    content = bytearray(file.read_bytes())
    magic, count, height, width = (
        int.from_bytes(content[first : first + 4], "big") for first in range(0, HEADER_BYTES, 4)
    )
    size = count * height * width
    if magic != IDX_IMAGES or size == 0 or len(content) != HEADER_BYTES + size:
        raise RunError("invalid", f"{known.folder}/raw/{FILE} is no whole IDX file of images")
    pixels = torch.frombuffer(content, dtype=torch.uint8, offset=HEADER_BYTES)
    place = f"MPT_DATA_DIR/{known.folder}, the pixels of its training images"
    inputs.note_used(place, hashlib.sha256(pixels.numpy().tobytes()).hexdigest())
    return pixels.view(count, height, width)


def _download(known: ImageSet, file: Path) -> None:
    url = f"{known.url}{FILE}.gz"
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_S) as answer:
            content = gzip.decompress(answer.read())
    except (OSError, EOFError) as error:
        raise RunError("error", f"{url} could not be downloaded: {error}") from error
    if hashlib.sha256(content).hexdigest() != known.sha256:
        raise RunError("error", f"{url} is not the file that was published: its digest differs")
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")
    part.write_bytes(content)
    part.replace(file)
