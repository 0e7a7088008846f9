"""`python -m mptcore.data.inspect FILE [CELLS [OPTIONS]]` prints the contents of an uploaded file,
of at most CELLS cells, as one JSON object. OPTIONS say how a table is read, as JSON.

{"format", "n", "dim" (numbers), "arrays" (.npz: shapes by name), "columns" (tables), "reading"
(numbers: how they are read), "problems"}; unknown fields are left out, and text has no "dim". Exit
status 0 without problems, else 1. The
memory, time and open files of the process are limited, because a small file can expand to a very
large one, and may be an attack on its reader. The process ends when its parent ends."""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from mptcore.data import texts, upload_limits, uploads
from mptcore.data.tables import index_columns
from mptcore.data.uploads import Inspection, as_json
from mptcore.runtime.process import be_expendable
from mptcore.specs.vectors import DEFAULT_TABLE_OPTIONS, TableOptions

CPU_S = 120
OPEN_FILES = 64
MAX_FOUND_BYTES = 2**20
"""Maximum size of a file's description, as JSON. The service keeps and sends the whole of it."""


def look(
    path: Path,
    max_cells: int = upload_limits.MAX_CELLS,
    options: TableOptions = DEFAULT_TABLE_OPTIONS,
) -> Inspection:
    """Return the contents of a file, or the problem that it has too many columns or that their
    description is too long."""
    inspection = _look(path, max_cells, options)
    if (columns := len(inspection.columns or ())) > upload_limits.MAX_COLUMNS:
        message = f"columns: the file has {columns}, at most {upload_limits.MAX_COLUMNS} are read"
        return Inspection(inspection.format, problems=[f"{message}; an .npy file may have more"])
    if (size := len(as_json(inspection))) > MAX_FOUND_BYTES:
        text = "the names of its arrays and columns, of constant ones and those with missing values"
        problem = f"{text} take {size} bytes; at most {MAX_FOUND_BYTES} are kept: shorten the names"
        return Inspection(inspection.format, problems=[problem])
    return inspection


def _look(path: Path, max_cells: int, options: TableOptions) -> Inspection:
    """Return whether a file contains numbers or text. A Parquet file with text is one of text, and
    may have one score column, unless options for tables of numbers are given, or it has several
    columns of fractions."""
    with suppress(Exception):  # the reader below reports the error
        if problem := upload_limits.excess(path, max_cells, options):
            return Inspection(path.suffix.lstrip("."), problems=[problem])
    if path.suffix in (".txt", ".jsonl"):
        return texts.inspect(path)
    if path.suffix == ".parquet" and options == DEFAULT_TABLE_OPTIONS and _is_text(path):
        return texts.inspect(path)
    return uploads.inspect(path, options)


def _is_text(path: Path) -> bool:
    """Return whether a Parquet file has text, and at most one column of fractions. The index of a
    pandas table does not count."""
    import pyarrow as arrow
    from pyarrow import parquet

    with suppress(arrow.ArrowException, OSError):
        schema = parquet.read_schema(path)
        index = index_columns(schema)
        text, fractions = (
            [name for name in texts.columns_of(schema, *kinds) if name not in index]
            for kinds in (texts.TEXT_TYPES, ("is_floating",))
        )
        return bool(text) and len(fractions) < 2
    return False  # the reader of numbers reports the error


ARROW = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "2", "ARROW_IO_THREADS": "2"}
"""Arrow's own pool reserves a gigabyte, and it starts a thread for each processor: both count as
memory of this process."""


def _limit_itself(memory_bytes: int) -> None:
    """Limit the resources of this process: memory in addition to the program itself. The number of
    processes is not limited, because Linux counts all processes of the user."""
    os.environ.update(ARROW)
    program_bytes = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    for limit, maximum in (
        (resource.RLIMIT_DATA, program_bytes + memory_bytes),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (maximum, maximum))


def main(path: str, max_cells: str = str(upload_limits.MAX_CELLS), options: str = "{}") -> int:
    memory_bytes = upload_limits.memory_bytes(Path(path))
    if sys.platform == "linux":
        be_expendable()
        _limit_itself(memory_bytes)
    try:
        chosen = TableOptions.model_validate_json(options)
        inspection = look(Path(path), int(max_cells), chosen)
    except MemoryError:
        detail = f"it takes more than {memory_bytes >> 20} MiB of memory, the maximum for a file of"
        inspection = Inspection(problems=[f"{detail} {Path(path).stat().st_size} bytes: split it"])
    print(as_json(inspection))  # noqa: T201
    return 1 if inspection.problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
