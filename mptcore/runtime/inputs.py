"""Files that a run reads. A spec names uploads, and weights of experiments, by their ids.

A supervisor gives the path and the SHA-256 of each file; the digest is checked before the file is
read. A run without a supervisor finds them in the folder MPT_STORE.
"""

import hashlib
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Protocol


class InputError(Exception):
    """A file is missing, or differs from the stored one."""


class MissingInput(InputError):
    """A file is not there, or the service did not name it."""


class Located(Protocol):
    """Path of a file, and its SHA-256."""

    @property
    def file(self) -> str: ...
    @property
    def sha256(self) -> str: ...


_located: Mapping[str, Located] | None = None


def locate(inputs: Mapping[str, Located] | None) -> None:
    """Set the files of this process's run, by the ids in its spec."""
    global _located
    _located = inputs
    _used.clear()


_used: dict[str, str] = {}


def note_used(place: str, sha256: str) -> None:
    """Record the digest of an input. `place` is the variable of a folder and the path below it, or
    a name on the hub."""
    _used[place] = sha256


def used() -> Mapping[str, str]:
    """Return the digests of all inputs read so far, by place."""
    return dict(_used)


def input_file(name: str, pattern: str) -> Path:
    """Return the file of an id: its located file or, if nothing was located, the last file in
    MPT_STORE that matches the pattern. Raises InputError."""
    path = _stored(pattern) if _located is None else _as_located(name, _located)
    note_used(f"MPT_STORE/{pattern}", digest(path))
    return path


def _as_located(name: str, located: Mapping[str, Located]) -> Path:
    if name not in located:
        raise MissingInput(DELETED)
    path = Path(located[name].file)
    if digest(path) != located[name].sha256:
        detail = (
            "it differs from the stored file (its SHA-256 differs): it was changed or truncated"
        )
        raise InputError(detail)
    return path


DELETED = "the store has no file of it; it may have been deleted"


def _stored(pattern: str) -> Path:
    store = os.environ.get("MPT_STORE")
    if not store:
        raise InputError("MPT_STORE, the folder that holds it, is not set")
    found = sorted(Path(store).glob(pattern))
    if not found:
        raise MissingInput(DELETED)
    return found[-1]


@cache
def digest(path: Path) -> str:
    """Return the SHA-256 of a file. It must not change while this process runs. Raises
    InputError."""
    try:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"its file cannot be read: {error.strerror}") from error
