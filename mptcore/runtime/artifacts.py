"""Keep files as results of a run, also while the disk is full."""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from mptcore.protocol.records import Artifact, FullDisk
from mptcore.runtime.durable import rename_durably
from mptcore.runtime.process import FULL_DISK, RETRY_S

FULL_DISK_TEXTS = ("No space left on device", "os error 28", "Disk quota exceeded")
"""Parts of the messages of libraries that give no error number."""

_report: Callable[[FullDisk], None] | None = None


def report_full_disks(report: Callable[[FullDisk], None] | None) -> None:
    """Let `keep` wait for space on a full disk, after it has called `report`: somebody can end the
    wait. With None it fails instead."""
    global _report
    _report = report


def is_full_disk(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, says that a disk is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            return True
        if any(text in str(error) for text in FULL_DISK_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


def keep(
    folder: Path, file: str, media_type: str, content: Callable[[], Iterable[bytes]]
) -> Artifact:
    """Write a file durably under `folder`, from the parts of its content. If the disk is full, wait
    until it has the space, and write the file again."""
    size: int | None = None
    while True:
        try:
            return _written(folder, file, media_type, content())
        except OSError as error:
            if _report is None or error.errno not in FULL_DISK:
                raise
        if size is None:
            size = sum(map(len, content()))
            _report(FullDisk(file, size))
        time.sleep(RETRY_S)
        while _free_bytes(folder) < size:  # writing a part of it would only fill the disk again
            time.sleep(RETRY_S)


def _free_bytes(folder: Path) -> int:
    """Return the free bytes of the disk of a folder, which may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _written(folder: Path, file: str, media_type: str, parts: Iterable[bytes]) -> Artifact:
    aside = folder / f"{file}.tmp"
    digest = hashlib.sha256()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as output:
            for part in parts:
                digest.update(part)
                output.write(part)
        rename_durably(aside, folder / file)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise
    return Artifact(file, media_type, digest.hexdigest())
