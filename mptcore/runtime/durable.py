"""Write files that survive a power cut."""

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Write all of the content or nothing: to a temporary file, then renamed. The file is on disk
    when this returns."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        aside.write_bytes(content)
        rename_durably(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def rename_durably(aside: Path, path: Path) -> None:
    """Rename a completely written file in the same folder, durably."""
    descriptor = os.open(aside, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    aside.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable after files were created, renamed or removed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
