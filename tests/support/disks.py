"""Small file systems that a test fills, breaks or makes read-only."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class DiskUnavailable(Exception):
    """No disk can be made on this machine, and why."""


class Disk:
    """A small ext4 file system of its own, in a file. Raises DiskUnavailable."""

    def __init__(self, parent: Path, name: str, megabytes: int):
        if shutil.which("mkfs.ext4") is None:
            raise DiskUnavailable("mkfs.ext4 is missing here")
        self.folder = parent / name
        self.folder.mkdir()
        self._image = parent / f"{name}.image"
        with open(self._image, "wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", "-m", "0", str(self._image))
        try:
            self._mount()
        except subprocess.CalledProcessError as error:
            raise DiskUnavailable(f"no mount is permitted here: {error.stderr.strip()}") from error

    @contextmanager
    def full(self) -> Iterator[None]:
        """Fill the disk while the block runs."""
        filler = self.folder / "filler"
        with open(filler, "ab", buffering=0) as file:
            for size in (4096, 256):  # a small file may fit where a whole page does not
                with suppress(OSError):
                    while True:
                        file.write(b"\0" * size)
            os.fsync(file.fileno())
        try:
            yield
        finally:
            filler.unlink()

    def fail(self) -> None:
        """Have the kernel make it read-only, as after an error of the device."""
        found = _run("findmnt", "-n", "-o", "SOURCE", str(self.folder))
        Path("/sys/fs/ext4", Path(found.strip()).name, "trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """Make it writable again. No file of it may be open."""
        self.unmount()
        subprocess.run(["e2fsck", "-p", str(self._image)], capture_output=True)
        self._mount()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Mount it read-only for the block. No file of it may be open for writing."""
        _run("mount", "-o", "remount,ro", str(self.folder))
        yield
        _run("mount", "-o", "remount,rw", str(self.folder))

    def unmount(self) -> None:
        _run("umount", str(self.folder))

    def detach(self) -> None:
        """Unmount it as soon as no file of it is open."""
        _run("umount", "--lazy", str(self.folder))

    def _mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.folder))


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
