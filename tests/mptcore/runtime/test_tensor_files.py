"""Saved weights of an experiment, and unusable ones."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mptcore.protocol.records import RunError
from mptcore.runtime.tensor_files import FILE, keep_weights, load_weights

TENSORS = {"w": torch.arange(3.0)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    return tmp_path / "artifacts" / "e1"


def test_saved_tensors_are_loaded_by_their_family(folder: Path) -> None:
    keep_weights("markov", TENSORS, {"seeds": "4"}, folder)
    tensors, header = load_weights("markov", "e1")
    assert torch.equal(tensors["w"], TENSORS["w"])
    assert header["seeds"] == "4"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"mptcore": '{"family": "vae"}'}, "experiment e1 trained a model of another family, vae"),
        ({"seeds": "4"}, "experiment e1 has weights in the format of an earlier version"),
        (None, "experiment e1 has weights in the format of an earlier version"),
    ],
)
def test_other_files_give_a_readable_error(
    header: dict[str, str] | None, reason: str, folder: Path
) -> None:
    folder.mkdir(parents=True)
    save_file(TENSORS, folder / FILE, header)
    with pytest.raises(RunError, match=reason) as caught:
        load_weights("markov", "e1")
    assert caught.value.cause == "invalid"


def test_the_same_weights_are_the_same_file(folder: Path) -> None:
    header = {name: name for name in "abcdefgh"}
    other = dict(reversed(header.items()))
    found = [keep_weights("markov", TENSORS, one, folder) for one in [header, other] * 10]
    assert len(set(found)) == 1


def test_a_missing_file_gives_a_readable_error(folder: Path) -> None:
    with pytest.raises(RunError, match="has no weights that can be used"):
        load_weights("markov", "e1")
