"""`python -m tests.chaos.slices [LABS] [SLICE_H] [FIRST]`: a week of each of 1,000 random labs.

It prints a line for each lab whose runs gave way in vain, or where a user waited for too long or
had another part of the slots than the shares allow, and a summary. The exit status is 1 if there is
such a lab. With a slice of 0 h the summary shows the same without slices.
"""

import shutil
import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from service.db.engine import Database
from service.fair_share import HOUR_S
from service.operations.prepare import prepare
from service.settings import Settings
from tests.support.slices import LOOK_S, SAVE_S, Week, week

OFF, OFF_SLICES = 0.05, 2
REPEATED = 0.01


def problems(found: Week, slice_h: float) -> list[str]:
    """Return a line for each promise of docs/lab.md that a week broke."""
    longest_h = 1.2 * slice_h + (SAVE_S + LOOK_S) / HOUR_S
    lines = [*found.findings.useless, *found.findings.in_turns]
    if found.longest_due_h > longest_h:
        lines.append(f"a user was due for {found.longest_due_h:.2f} h")
    if found.off > OFF or found.off_slices > OFF_SLICES:
        lines.append(f"usage deviates by {found.off:.1%} or {found.off_slices:.2f} slices")
    if found.repeated > REPEATED:
        lines.append(f"{found.repeated:.2%} of the slot time went to starts after giving way")
    which = f"lab {found.seed} ({found.users} users, {found.slots} slots)"
    return [f"{which}: {line}" for line in lines]


def main() -> int:
    labs, slice_h, first = (*map(float, sys.argv[1:]), *(1000.0, 4.0, 0.0)[len(sys.argv) - 1 :])
    weeks, broken = [], 0
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(store=Path(folder, "store"), database_url=None)
        prepare(settings)
        for seed in range(int(first), int(first + labs)):
            file = shutil.copy(settings.store / "mptlab.sqlite3", Path(folder, f"{seed}.sqlite3"))
            with closing(Database(f"sqlite:///{file}")) as database:
                weeks.append(week(database, seed, slice_h))
            Path(file).unlink()
            for line in problems(weeks[-1], slice_h) if slice_h else ():
                broken += 1
                print(line, flush=True)
            if not len(weeks) % 50:
                _summarise(weeks)
    _summarise(weeks)
    return 1 if broken else 0


def _summarise(weeks: list[Week]) -> None:
    findings = [one.findings for one in weeks]
    print(
        f"{len(weeks)} labs:",
        f"due for at most {_largest([one.longest_due_h for one in weeks])} h,",
        f"without a run for at most {_largest([one.longest_idle_h for one in weeks])} h,",
        f"usage off by {_largest([100 * one.off for one in weeks])} % or",
        f"{_largest([one.off_slices for one in weeks])} slices,",
        f"{sum(one.displaced for one in findings)} runs gave way,",
        f"{sum(len(one.useless) for one in findings)} in vain,",
        f"{sum(len(one.in_turns) for one in findings)} in turns,",
        f"starts at most {max(one.repeated for one in weeks):.2%} of the slot time",
        flush=True,
    )


def _largest(values: list[float]) -> str:
    return f"{max(values):.2f} (median {statistics.median(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
