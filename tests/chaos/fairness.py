"""`python -m tests.chaos.fairness [SEEDS] [projects]`: whether anyone starves, over a thousand
random labs; with `projects`, whether projects and their members get their shares of a week.

The suite runs a few of them. The last line is a summary; the exit status is 1 if any lab fails.
"""

import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from service.db.engine import Database
from service.operations.prepare import prepare
from service.settings import Settings
from tests.support.fairness import starved
from tests.support.project_labs import far_from_their_shares


def main() -> int:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    failures = far_from_their_shares if "projects" in sys.argv else starved
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(store=Path(folder, "store"), database_url=None)
        prepare(settings)
        for seed in range(seeds):
            file = shutil.copy(settings.store / "mptlab.sqlite3", Path(folder, f"{seed}.sqlite3"))
            with closing(Database(f"sqlite:///{file}")) as database:
                for line in failures(database, seed):
                    print(line)
                    count += 1
            Path(file).unlink()
            if not (seed + 1) % 100:
                print(f"{seed + 1} labs", flush=True)
    what = "parts far from their shares" if "projects" in sys.argv else "experiments starved"
    print(f"fairness: {seeds} labs, {count} {what}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
