"""Files that are there after a power cut, and are what was written."""

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """All of the content or nothing, kept when this returns: written aside, then renamed."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        aside.write_bytes(content)
        rename_durably(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def rename_durably(aside: Path, path: Path) -> None:
    """Give a file that was written aside, in the same folder, its name; all of it is kept then."""
    descriptor = os.open(aside, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    aside.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Keep what a folder lists: a name that was made, renamed or removed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
