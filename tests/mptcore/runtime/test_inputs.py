"""Files that a spec names by an id: which one is read, and which are refused."""

import hashlib
from pathlib import Path

import pytest

from mptcore.protocol.orders import Input
from mptcore.runtime import inputs
from mptcore.runtime.inputs import InputError, input_file

PATTERN = "datasets/one/*"


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    inputs.locate(None)
    folder = tmp_path / "datasets" / "one"
    folder.mkdir(parents=True)
    for name in ("a.npy", "c.npy", "b.npy"):
        (folder / name).write_text(name)
    return folder


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def refused(name: str = "one", pattern: str = PATTERN) -> str:
    with pytest.raises(InputError) as error:
        input_file(name, pattern)
    return str(error.value)


def test_without_a_supervisor_the_newest_file_of_the_store_is_used(stored: Path) -> None:
    assert input_file("one", PATTERN) == stored / "c.npy"
    assert inputs.used() == {f"MPT_STORE/{PATTERN}": digest("c.npy")}
    deleted = "the store has no file of it; it may have been deleted"
    assert refused(pattern="datasets/two/*") == deleted


def test_without_a_store_an_input_is_not_found(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MPT_STORE")
    assert refused() == "MPT_STORE, the folder that holds it, is not set"


def test_a_supervisor_gives_the_file_and_its_digest(stored: Path) -> None:
    file = str(stored / "a.npy")
    good, other = (Input(file=file, sha256=digest(text)) for text in ("a.npy", "other"))
    inputs.locate({"one": good, "two": other})
    assert input_file("one", PATTERN) == stored / "a.npy"
    assert inputs.used() == {f"MPT_STORE/{PATTERN}": digest("a.npy")}
    changed = "it differs from the stored file (its SHA-256 differs): it was changed or truncated"
    assert refused("two") == changed
    assert refused("three") == "the store has no file of it; it may have been deleted"
    inputs.locate({"one": Input(file=str(stored / "gone"), sha256="")})
    assert inputs.used() == {}
    assert refused() == "its file cannot be read: No such file or directory"
    inputs.locate(None)
