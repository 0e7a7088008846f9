"""A state built by hand, saved to a file and found again among files that are not used."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save as as_bytes

from mptcore.protocol.records import Checkpoint
from mptcore.runtime import checkpoint
from mptcore.runtime.checkpoint import Snapshot, files, first_whole
from mptcore.runtime.state import MaskPlan, RunState, TrainingState
from tests.support.ppca_spec import ppca_spec
from tests.support.runs import spec_of

SPEC = spec_of(ppca_spec())


def saved(folder: Path, **changes: Any) -> tuple[Path, RunState]:
    """A state by hand, and the file that it was saved to."""
    tensors = {"a": torch.arange(3.0), "b/c": torch.ones(2, 2)}
    training = TrainingState(7, 40, 90, (MaskPlan(50, 20), MaskPlan(60, 60)), tensors)
    scores = [torch.arange(8.0).view(1, 2, 4), torch.arange(5.0).view(1, 1, 5)]
    own: dict[str, Any] = {"training": lambda: training, "scores": scores, "device": "cpu"}
    state = RunState(seq=45, masks=110, **(own | changes))
    return folder / Snapshot.of(state, SPEC).save(folder).file, state


def test_a_saved_state_is_found_again(tmp_path: Path) -> None:
    path, state = saved(tmp_path / "a" / "b")
    found = first_whole(SPEC, [path])
    assert found is not None
    assert (found.after, found.masks, found.device) == (45, 110, "cpu")
    assert found.training is not None
    assert state.training is not None
    training = state.training()
    for name in ("epoch", "seq", "masks", "plans"):
        assert getattr(found.training, name) == getattr(training, name)
    assert list(found.training.tensors) == ["a", "b/c"]
    for name, tensor in training.tensors.items():
        assert torch.equal(found.training.tensors[name], tensor)
    for mine, kept in zip(found.scores, state.scores, strict=True):
        assert torch.equal(mine, kept)


def test_a_checkpoint_has_the_state_at_the_snapshot(tmp_path: Path) -> None:
    """It may be written while the training continues."""
    weights = torch.zeros(3)
    training = TrainingState(7, 40, 90, (), {"weights": weights, "transposed": torch.ones(2, 3).T})
    state = RunState(seq=45, training=lambda: training)
    snapshot = Snapshot.of(state, SPEC)
    weights += 1
    state.seq += 1
    found = first_whole(SPEC, [tmp_path / snapshot.save(tmp_path).file])
    assert found is not None
    assert found.training is not None
    assert found.after == 45
    assert found.training.tensors["weights"].tolist() == [0, 0, 0]
    assert found.training.tensors["transposed"].shape == (3, 2)


def test_a_failed_save_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full either for safetensors, which raises its own error, or at the end."""

    def full(*arguments: object) -> None:
        raise SafetensorError("No space left on device")

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    snapshot = Snapshot.of(RunState(), SPEC)
    for module, name, failing in ((checkpoint, "save_file", full), (os, "fsync", broken)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, failing)
            with pytest.raises(OSError, match=r"No space|Input/output"):
                snapshot.save(tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_an_empty_session_is_saved(tmp_path: Path) -> None:
    path, _ = saved(tmp_path, training=None, scores=[])
    found = first_whole(SPEC, [path])
    assert found is not None
    assert found.training is None
    assert found.scores == []


def test_a_checkpoint_file_is_named_by_number_and_digest(tmp_path: Path) -> None:
    state = RunState(seq=3)
    first = Snapshot.of(state, SPEC).save(tmp_path)
    digest = hashlib.sha256((tmp_path / first.file).read_bytes()).hexdigest()
    assert first == Checkpoint(f"000000001-{digest[:16]}.safetensors", digest, 3)
    (tmp_path / first.file).rename(tmp_path / "000000009-0.safetensors")
    (tmp_path / "other.safetensors").touch()
    later = Snapshot.of(state, SPEC).save(tmp_path)
    assert later.file.startswith("000000010-")
    assert [path.name for path in files(tmp_path)] == [later.file, "000000009-0.safetensors"]


def test_the_first_undamaged_checkpoint_is_used(tmp_path: Path) -> None:
    paths = [saved(tmp_path, device=device)[0] for device in ("cpu", "cuda")]
    for order, device in ((paths, "cpu"), (paths[::-1], "cuda")):
        found = first_whole(SPEC, [tmp_path / "0-gone.safetensors", *order])
        assert found is not None
        assert found.device == device
    assert first_whole(SPEC, [tmp_path / "0-gone.safetensors"]) is None


def test_the_two_latest_checkpoints_are_kept(tmp_path: Path) -> None:
    paths = [saved(tmp_path)[0] for _ in range(4)]
    other = tmp_path / "weights.safetensors"
    other.touch()
    checkpoint.prune(tmp_path)
    assert files(tmp_path) == [paths[3], paths[2]]
    assert other.exists()


def renamed(content: bytes, folder: Path) -> Path:
    """A file with this content, whose name contains its digest."""
    path = folder / f"000000001-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    path.write_bytes(content)
    return path


def test_files_that_are_not_checkpoints_are_ignored(tmp_path: Path) -> None:
    """The digest in the name is right, but there are no tensors, no header, or another format."""
    assert first_whole(SPEC, [renamed(b"x" * 100, tmp_path)]) is None
    content = as_bytes({"scores": torch.zeros(1)})
    assert first_whole(SPEC, [renamed(content, tmp_path)]) is None
    header = {"format": checkpoint.FORMAT, "spec": SPEC.model_dump_json()}
    header |= {"after": "3", "masks": "7"}
    old = first_whole(SPEC, [renamed(as_bytes({}, header), tmp_path)])
    assert old is not None
    assert old.device is None  # from before this was stored
    for change in ({"format": "2"}, {"format": ""}, {"spec": '{"model": "of another version"}'}):
        assert first_whole(SPEC, [renamed(as_bytes({}, header | change), tmp_path)]) is None


def test_a_checkpoint_of_other_seeds_is_not_used(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    assert first_whole(spec_of(ppca_spec(seeds=[4, 45])), [path]) is None


def test_tensors_below_a_prefix() -> None:
    one, two = torch.zeros(1), torch.ones(1)
    found = checkpoint.under("a/", {"a/b": one, "a/a/b": two, "b/a/": one, "c": two})
    assert list(found) == ["b", "a/b"]
    assert found["a/b"] is two
