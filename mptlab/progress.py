"""Show the progress of experiments: a bar in a terminal, otherwise lines."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import fmean

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from mptlab.errors import Json

Show = Callable[[Json], None]

LONGEST_NAME = 20
"""Maximum characters of a name or id, so that a bar fits in 80 columns."""

PLAIN_STEPS = 10
"""Plain lines are written for each tenth of the work."""


def followed(wanted: bool = True) -> AbstractContextManager[Show]:
    """Yield a function that shows the progress of experiments and sweeps on stderr, or does
    nothing."""
    return shown_progress(Console(stderr=True)) if wanted else nullcontext(lambda _: None)


@contextmanager
def shown_progress(console: Console) -> Iterator[Show]:
    """Show a bar for each experiment or sweep. If the console is neither a terminal nor a notebook,
    print a line for each change of status and each tenth of the work. Both show the time left."""
    if not (console.is_terminal or console.is_jupyter):
        yield _lines(console)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[far]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[latest]}", markup=False,
                   table_column=Column(no_wrap=True, overflow="ellipsis")),
    )  # fmt: skip
    bars = Progress(*columns, console=console)
    tasks: dict[str, TaskID] = {}

    def show(document: Json) -> None:
        bars.start()
        if document["id"] not in tasks:
            tasks[document["id"]] = bars.add_task("", total=None, far="", latest="")
        task = tasks[document["id"]]
        name = _name(document)[:LONGEST_NAME]
        latest = document.get("latest", "")
        bars.update(task, description=f"{name}  {document['status']}", latest=latest)
        if progress := document["progress"]:
            far = "{}/{} {}".format(*_counted(document))
            bars.update(task, completed=progress["done"], total=progress["total"], far=far)

    try:
        yield show
    finally:
        if tasks:
            bars.stop()


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


def _lines(console: Console) -> Show:
    last: dict[str, str] = {}

    def show(document: Json) -> None:
        line = f"{_name(document)}  {document['status']}{_tenths(document)}"
        if last.get(document["id"]) != line:
            last[document["id"]] = line
            console.print(Text(line + _time_left(document)), soft_wrap=True)

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
