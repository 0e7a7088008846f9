"""Files that a power cut leaves whole, or not at all."""

import os
from pathlib import Path

import pytest

from mptcore.runtime.durable import sync_folder, write_durably


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_durably(tmp_path / "a", b"x")
    assert list(tmp_path.iterdir()) == []


def test_file_and_folder_are_synced_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record each sync and whether the file had its final name by then. Another process that writes
    the same file uses a separate temporary file."""
    path, synced = tmp_path / "a", list[tuple[str, bool]]()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))
        aside = Path(synced[0][0])
        assert path.exists() or aside.read_bytes() == b"content"
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    before = os.listdir("/proc/self/fd")
    write_durably(path, b"content")
    assert synced == [(f"{path}.{os.getpid()}.tmp", False), (str(tmp_path), True)]
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
    assert path.read_bytes() == b"content"
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_folder_that_cannot_be_synced_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="Input/output"):
        sync_folder(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_that_cannot_be_opened_keeps_its_error(tmp_path: Path) -> None:
    """The error of the clean-up does not replace it."""
    with pytest.raises(FileNotFoundError) as caught:
        write_durably(tmp_path / "gone" / "a", b"x")
    assert caught.value.__context__ is None
