"""Receive uploaded files in pieces and inspect them in a separate process."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from mptcore.runtime.durable import sync_folder, write_durably
from mptcore.specs import Problem
from mptcore.specs.vectors import DEFAULT_TABLE_OPTIONS, OPTIONS_FILE, TableOptions
from service.datasets.child_environment import run_environment
from service.queue.quota import Room
from service.refusals import ApiError, disk_full, invalid
from service.settings import Settings

INSPECTION_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Received:
    """Size and digest of a received file."""

    bytes: int
    sha256: str


@dataclass
class _Writer:
    output: BinaryIO
    settings: Settings
    room: Room
    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def check_room(self, more: int) -> None:
        """Check that this many more bytes are within the limits and leave the disk's reserve."""
        self.room.check(self.size + more)
        limit = self.settings.max_upload_bytes
        if self.size + more > limit:
            detail = f"an upload is at most {limit} bytes"
            raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "upload_too_large", detail)
        if shutil.disk_usage(self.settings.store).free - more < self.settings.reserve_bytes:
            raise disk_full()

    def write(self, piece: bytes) -> None:
        self.check_room(len(piece))
        self.size += len(piece)
        self.digest.update(piece)
        self.output.write(piece)
        self.output.flush()


def move(file: Path, place: Path) -> None:
    """Move a file to its place, durably."""
    place.parent.mkdir(parents=True, exist_ok=True)
    os.replace(file, place)
    sync_folder(place.parent)
    sync_folder(place.parent.parent)


def options_file(reading: Mapping[str, Any] | None) -> bytes | None:
    """Return the content of the file with the options that a table is read with, if there are
    any."""
    options = (reading or {}).get("options")
    return None if options is None else json.dumps(options, sort_keys=True).encode()


def keep_options(folder: Path, reading: Mapping[str, Any] | None) -> None:
    """Write the options that a table is read with beside its file, durably."""
    if (content := options_file(reading)) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / OPTIONS_FILE, content)


def inspect(
    file: Path, name: str, max_cells: int, options: TableOptions = DEFAULT_TABLE_OPTIONS
) -> dict[str, Any]:
    """Return the contents of a file that was uploaded under this name. Raises ApiError if it is
    neither numbers nor text, or does not match its extension."""
    try:
        found: dict[str, Any] = json.loads(_inspected(file, max_cells, options))
    except (subprocess.TimeoutExpired, ValueError):
        found = {"problems": ["it could not be read: it takes too much time or memory"]}
    if found["problems"]:
        raise invalid([Problem("", f"{name}: {problem}") for problem in found["problems"]])
    return found


def _inspected(file: Path, max_cells: int, options: TableOptions) -> bytes:
    """Return the inspection's output. The inspection ends with this thread and leaves no process
    behind."""
    arguments = [str(file), str(max_cells), options.model_dump_json(exclude_defaults=True)]
    command = [sys.executable, "-m", "mptcore.data.inspect", *arguments]
    with subprocess.Popen(
        command,
        env=run_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=INSPECTION_TIMEOUT_S)[0]
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
