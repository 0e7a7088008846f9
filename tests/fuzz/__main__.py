"""`python -m tests.fuzz`: bad requests to a real API process. The last line is a summary; the exit
status is 1 where something was found."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from service.operations.prepare import prepare
from service.settings import Settings
from tests.fuzz.campaign import run, target
from tests.fuzz.costs import MAX_CPU_S, TITLE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mpt-fuzz-"))
    settings = Settings(store=folder / "store", database_url=None)
    prepare(settings)
    with target(settings, folder / "log") as aim:
        outcome = run(aim, arguments.requests, arguments.seed, MAX_CPU_S)
    print(TITLE)
    for cost in outcome.costs:
        print(cost.line)
    for status, count in sorted(outcome.statuses.items(), key=str):
        print(f"{status or 'cut off'}: {count}")
    for defect in outcome.defects[:50]:
        print(defect)
    if outcome.defects:
        print(f"the log of the service: {folder / 'log'}")
    else:
        shutil.rmtree(folder)
    print(outcome.summary)
    return 1 if outcome.defects else 0


if __name__ == "__main__":
    sys.exit(main())
