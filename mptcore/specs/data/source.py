"""Base class of all sources of data, with the files that they read below MPT_DATA_DIR."""

from pathlib import Path
from typing import ClassVar

from mptcore.specs.base import Spec


class Source(Spec):
    """Base class of the sources. A source that reads files names them here, once for the service
    and for the run."""

    named_by: ClassVar[str] = "source"
    """Field with the name of the data."""
    noun: ClassVar[str] = "data set"
    """Word for the data, in messages."""
    is_remote: ClassVar[bool] = False
    """True if files that are not there are downloaded."""

    @property
    def local_name(self) -> str:
        """Name of the data, in messages."""
        return str(getattr(self, self.named_by))

    def local(self, folder: Path) -> Path | None:
        """Return the file or folder that is read. None: the source reads none."""
        return None

    def is_local(self, folder: Path) -> bool:
        """Return whether everything that is read is there."""
        found = self.local(folder)
        return found is not None and found.is_file()

    def local_names(self, folder: Path) -> list[str]:
        """Return the names of all data that are available locally."""
        return []
