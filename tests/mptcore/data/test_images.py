"""Image data, from the files that are published."""

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mptcore.data.arrays import load_arrays
from mptcore.data.dataset import Dataset
from mptcore.data.images import FILE, IDX_IMAGES, SETS, ImageSet
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


def test_missing_data_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPT_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("MPT_ALLOW_DOWNLOAD", raising=False)
    with pytest.raises(RunError, match="MPT_ALLOW_DOWNLOAD=1"):
        load(MnistData(source="mnist"))
    monkeypatch.delenv("MPT_DATA_DIR")
    with pytest.raises(RunError, match="MPT_DATA_DIR, which is not set"):
        load(MnistData(source="mnist"))


def test_a_file_that_is_no_whole_set_of_images_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPT_DATA_DIR", str(tmp_path))
    whole = write(tmp_path, "MNIST")
    assert load(MnistData(source="mnist")).x.shape == (6, 4)
    for content in (b"", whole[:-1], whole + b"0", b"\0" + whole[1:4] * 8):
        (tmp_path / "MNIST" / "raw" / FILE).write_bytes(content)
        with pytest.raises(RunError, match=r"MNIST/raw/.* is no whole IDX file"):
            load(MnistData(source="mnist"))


def write(folder: Path, name: str) -> bytes:
    """Six images of four pixels, in a file of the published form."""
    content = b"".join(n.to_bytes(4, "big") for n in (IDX_IMAGES, 6, 2, 2)) + bytes(range(24))
    file = folder / name / "raw" / FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    return content


def test_a_download_is_kept_where_it_is_what_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write(tmp_path / "published", "MNIST")
    packed = tmp_path / f"{FILE}.gz"
    packed.write_bytes(gzip.compress(content))
    url, here = f"{tmp_path.as_uri()}/", tmp_path / "here"
    monkeypatch.setenv("MPT_DATA_DIR", str(here))
    monkeypatch.setenv("MPT_ALLOW_DOWNLOAD", "1")

    def published(sha256: str) -> None:
        monkeypatch.setitem(SETS, "mnist", ImageSet("MNIST", url, sha256))

    published("0" * 64)
    with pytest.raises(RunError, match="is not the file that was published"):
        load(MnistData(source="mnist"))
    assert not here.exists()
    published(hashlib.sha256(content).hexdigest())
    assert load(MnistData(source="mnist")).x[0, 1] == torch.tensor(1.0) / 255
    packed.write_bytes(packed.read_bytes()[:-9])
    assert load(MnistData(source="mnist")).x.shape == (6, 4)  # it is not downloaded again
    assert [one.name for one in (here / "MNIST" / "raw").iterdir()] == [FILE]
    (here / "MNIST" / "raw" / FILE).unlink()
    with pytest.raises(RunError, match="could not be downloaded"):
        load(MnistData(source="mnist"))


def test_transformers_is_imported_as_users_do() -> None:
    """In the environment that `make setup` makes; torchvision, which may not fit torch, is not
    part of it."""
    code = "import transformers; from transformers import AutoModelForMaskedLM"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
