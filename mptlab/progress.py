"""Show the progress of experiments: a bar in a terminal or a notebook, otherwise lines."""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import fmean
from typing import Any, TextIO

from mptlab.errors import Json

Show = Callable[[Json], None]

LONGEST_NAME = 20
"""Maximum characters of a name or id, so that a bar fits in 80 columns."""

BAR = (
    "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} {unit} [{elapsed}<{remaining}{postfix}]"
)

PLAIN_STEPS = 10
"""Plain lines are written for each tenth of the work."""


def followed(wanted: bool = True) -> AbstractContextManager[Show]:
    """Yield a function that shows the progress of experiments and sweeps on stderr, or does
    nothing."""
    return shown_progress(sys.stderr) if wanted else nullcontext(lambda _: None)


@contextmanager
def shown_progress(file: TextIO) -> Iterator[Show]:
    """Show a bar of tqdm for each experiment or sweep. If the file is neither a terminal nor the
    output of a notebook, print a line for each change of status and each tenth of the work."""
    if not (file.isatty() or "ipykernel" in sys.modules):
        yield _lines(file)
        return
    from tqdm.auto import tqdm  # takes a tenth of a second, and few commands need it

    bars: dict[str, Any] = {}
    columns, lines = shutil.get_terminal_size()  # tqdm shows nothing where it measures a size of 0
    size = {"ncols": columns - 1, "nrows": lines} if file.isatty() else {}

    def show(document: Json) -> None:
        if document["id"] not in bars:
            bars[document["id"]] = tqdm(file=file, bar_format="{desc}{postfix}", **size)
        bar = bars[document["id"]]
        name = _name(document)[:LONGEST_NAME]
        bar.set_description_str(f"{name}  {document['status']}", refresh=False)
        if document["progress"]:
            done, total, unit = _counted(document)
            if bar.total is None or bar.unit != unit:
                bar.bar_format, bar.unit = BAR, unit
                bar.reset(total)
                bar.initial = done
            bar.n, bar.total = done, total  # the masks for an error are estimated anew
        if latest := document.get("latest"):
            bar.set_postfix_str(latest, refresh=False)
        bar.refresh()

    try:
        yield show
    finally:
        for bar in bars.values():
            bar.close()


SPARKS = "▁▂▃▄▅▆▇█"
SPARKLINE = 16
"""Maximum characters of a sparkline."""


def sparkline(values: Sequence[float]) -> str:
    """Return values as a line of bars from the lowest to the highest, the mean of several in one
    bar if there are more than SPARKLINE."""
    parts = min(len(values), SPARKLINE)
    ends = [len(values) * i // parts for i in range(parts + 1)] if parts else [0]
    means = [fmean(values[a:b]) for a, b in pairwise(ends)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    steps = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((mean - low) * steps)] for mean in means)


def _lines(file: TextIO) -> Show:
    last: dict[str, str] = {}

    def show(document: Json) -> None:
        line = f"{_name(document)}  {document['status']}{_tenths(document)}"
        if last.get(document["id"]) != line:
            last[document["id"]] = line
            print(line + _time_left(document), file=file, flush=True)

    return show


def _name(document: Json) -> str:
    return printable(document.get("name") or document["id"])


def _tenths(document: Json) -> str:
    progress = document["progress"]
    if not progress or not progress["total"]:
        return ""
    tenths = PLAIN_STEPS * progress["done"] // progress["total"]
    _, total, unit = _counted(document)
    return f"  {100 * tenths // PLAIN_STEPS} % of {total} {unit}"


def _counted(document: Json) -> tuple[int, int, str]:
    """Return done, total and unit of an experiment; a sweep counts points."""
    progress = document["progress"]
    done, total = progress["done"], progress["total"]
    if points := document.get("points"):
        return done * points // total, points, "points"
    return done, total, progress["unit"]


def _time_left(document: Json) -> str:
    """Return the time until the expected end; empty if it is unknown or past."""
    end = {**(document["progress"] or {}), **document}.get("estimated_end")
    if end is None or document["terminal"]:
        return ""
    seconds = round((datetime.fromisoformat(end) - datetime.now(UTC)).total_seconds())
    return f", about {timedelta(seconds=seconds)} left" if seconds > 0 else ""


def printable(text: str) -> str:
    """Replace control characters, so that users' texts cannot control a terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
