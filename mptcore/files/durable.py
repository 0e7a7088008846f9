"""Files that are there after a power cut, and are what was written."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from mptcore.records import RunError


def write_durably(path: Path, content: bytes) -> None:
    """All of the content or nothing, kept when this returns: written aside, then renamed."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Keep what a folder lists: a name that was made, renamed or removed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_digests(inputs: Mapping[str, str]) -> None:
    """Whether files under $MPT_STORE are what was recorded of them: SHA-256 by path. Raises
    RunError."""
    for name, recorded in inputs.items():
        found = _sha256(Path(os.environ.get("MPT_STORE", ""), name))
        if found != recorded:
            detail = f"its SHA-256 is {found}, and was {recorded} when it was stored"
            raise RunError("invalid", f"the file {name} was changed or cut since: {detail}")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        detail = f"cannot be read: {error.strerror}; it may have been deleted"
        raise RunError("invalid", f"the file {path} {detail}") from error
