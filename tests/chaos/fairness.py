"""`python -m tests.chaos.fairness [SEEDS] [projects [FIRST]]`: whether anyone starves, over a
thousand random labs; with `projects`, in labs with projects, and whether projects and their members
get their shares of a week.

The suite runs a few of them. The last line is a summary; the exit status is 1 if any lab fails.
What follows the end of a run (webhooks, sweeps, totals) is left out: it takes half of the time and
no shares depend on it.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest.mock import patch

from service.db.engine import Database
from service.operations.prepare import prepare
from service.queue import lease, ledger
from service.settings import Settings
from tests.support.fairness import starved
from tests.support.project_labs import far_from_their_shares


def main() -> int:
    with_projects = "projects" in sys.argv
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    seeds, first = (*numbers, *(1000, 0)[len(numbers) :])
    checks: list[Callable[[Database, int], list[str]]] = [
        partial(starved, with_projects=with_projects)
    ]
    if with_projects:
        checks.append(far_from_their_shares)
    count = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(lease, "note_status"),
        patch.object(ledger, "add_to_totals"),
    ):
        settings = Settings(store=Path(folder, "store"), database_url=None)
        prepare(settings)
        for seed in range(first, first + seeds):
            for check in checks:
                file = shutil.copy(settings.store / "mptlab.sqlite3", Path(folder, "lab.sqlite3"))
                with closing(Database(f"sqlite:///{file}")) as database:
                    for line in check(database, seed):
                        print(line, flush=True)
                        count += 1
                Path(file).unlink()
            if not (seed + 1 - first) % 100:
                print(f"{seed + 1 - first} labs, {count} failures", flush=True)
    print(f"fairness: {seeds} labs, {count} failures")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
