"""The file to which a runner writes its records until its supervisor has stored them."""

import os
import tempfile
from collections import deque
from pathlib import Path

READ_BYTES = 1 << 20
"""Maximum number of bytes that are read at once."""
LINE_BYTES = 1 << 22
"""Maximum length of a line. A longer one is cut into pieces, which are no records."""
TRIED_BYTES = 1 << 16
"""Number of bytes that are written to see whether a disk is full: more than a run writes at once.
"""


class Spool:
    """A file without a name: the system deletes it once the runner and the supervisor have closed
    it. The runner never waits for its reader, who may wait for the database."""

    def __init__(self, folder: Path | None = None):
        """Create the file in a folder, by default the system's for temporary files. Raises
        OSError."""
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)
        self._read_bytes = 0
        self._last_bytes: int | None = None
        self._lines = deque[bytes]()
        self._part = b""  # the beginning of a line whose end has not come

    def fileno(self) -> int:
        return self._file.fileno()

    @property
    def size(self) -> int:
        """Bytes that are read, or will be."""
        return os.fstat(self.fileno()).st_size if self._last_bytes is None else self._last_bytes

    @property
    def has_more(self) -> bool:
        """True if there are lines that were not taken."""
        return bool(self._lines) or self.size > self._read_bytes

    def read(self) -> None:
        """Read on, unless there are lines that were not taken."""
        if not self._lines:
            most = max(0, min(READ_BYTES, self.size - self._read_bytes))  # a library may cut it
            chunk = os.pread(self.fileno(), most, self._read_bytes)
            self._read_bytes += len(chunk)
            *lines, self._part = (self._part + chunk).split(b"\n")
            self._lines.extend(lines)
            if len(self._part) > LINE_BYTES:
                self._lines.append(self._part)
                self._part = b""

    def take(self) -> bytes | None:
        """Return the next line that was read, or None if there is none."""
        return self._lines.popleft() if self._lines else None

    def end(self) -> None:
        """Ignore what is written from now on, by processes that outlive the runner."""
        if self._last_bytes is None:
            self._last_bytes = self.size

    def check_space(self) -> None:
        """Raises OSError if the disk is full or read-only."""
        with tempfile.TemporaryFile(dir=self._folder) as file:
            file.write(bytes(TRIED_BYTES))

    def close(self) -> None:
        self._file.close()
