"""`python -m mptcore.data.inspect FILE` prints what an uploaded file holds, as one JSON object.

{"format", "n", "dim", "arrays" (.npz: shapes by name), "columns" (.csv, .parquet), "problems"};
what is unknown is left out. Exit status 0 without problems, else 1.
"""

import sys
from pathlib import Path

from mptcore.data.upload import as_json, inspect


def main(path: str) -> int:
    found = inspect(Path(path))
    print(as_json(found))  # noqa: T201
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
