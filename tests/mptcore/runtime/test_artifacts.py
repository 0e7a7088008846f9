"""Files of a run on a full disk. The errors that are raised here stand for such a disk."""

import errno
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from mptcore.protocol.records import Artifact, FullDisk
from mptcore.runtime import artifacts
from mptcore.runtime.artifacts import is_full_disk, keep, report_full_disks

CONTENT = [b"some ", b"bytes"]


class Disk:
    """A disk that has no space for some seconds. Only `sleep` lets time pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC):
        self.code = code
        self.full_s = 5
        self.free = 4
        """Free bytes while it is full."""
        self.syncs = 0
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(artifacts, "time", SimpleNamespace(sleep=self._sleep))
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=self._free))

    @property
    def _free(self) -> int:
        return self.free if self.full_s > 0 else 10**9

    def _fsync(self, descriptor: int) -> None:
        self.syncs += 1
        if self.full_s > 0:
            raise OSError(self.code, os.strerror(self.code))

    def _sleep(self, seconds: float) -> None:
        self.full_s -= 1
        assert self.full_s > -100


@pytest.fixture
def reported() -> Iterator[list[FullDisk]]:
    reports: list[FullDisk] = []
    report_full_disks(reports.append)
    yield reports
    report_full_disks(None)


def kept(folder: Path) -> Artifact:
    return keep(folder, "rows.csv", "text/csv", lambda: iter(CONTENT))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_file_waits_for_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: list[FullDisk], code: int
) -> None:
    """The wait is reported once with the size of the file, and the file is whole afterwards."""
    Disk(monkeypatch, code)
    folder = tmp_path / "new" / "1"
    digest = sha256(b"some bytes").hexdigest()
    assert kept(folder) == Artifact("rows.csv", "text/csv", digest)
    assert reported == [FullDisk("rows.csv", 10)]
    assert [path.name for path in folder.iterdir()] == ["rows.csv"]
    assert (folder / "rows.csv").read_bytes() == b"some bytes"


def test_a_file_that_does_not_fit_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: list[FullDisk]
) -> None:
    """Its parts would take the space of other runs each time."""
    disk = Disk(monkeypatch)
    disk.full_s = 50
    kept(tmp_path)
    assert disk.syncs == 3, "in vain, then the file and its folder"


def test_a_file_within_a_quota_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: list[FullDisk]
) -> None:
    """The free bytes of the disk do not show a user's quota."""
    disk = Disk(monkeypatch, errno.EDQUOT)
    disk.free = 10**9
    kept(tmp_path)
    assert disk.syncs == 7


def test_without_a_supervisor_a_full_disk_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        kept(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("reported")
def test_another_error_of_the_disk_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        kept(tmp_path)


def test_errors_that_say_that_a_disk_is_full() -> None:
    full = OSError(errno.ENOSPC, "x")
    wrapped = RuntimeError("the download failed")
    wrapped.__cause__ = full
    during = KeyError("a")
    during.__context__ = full
    for error in (full, wrapped, during, RuntimeError("write: No space left on device (28)")):
        assert is_full_disk(error)
    assert not is_full_disk(OSError(errno.EIO, "x"))
    assert not is_full_disk(RuntimeError("out of memory"))
