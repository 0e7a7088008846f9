"""A progress bar fed by the server's own progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


@contextmanager
def shown_progress(console: Console) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar for each experiment that the given function is shown."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeElapsedColumn(),
    )
    bars = Progress(*columns, console=console)
    tasks: dict[str, TaskID] = {}

    def show(experiment: dict[str, Any]) -> None:
        bars.start()
        if experiment["id"] not in tasks:
            tasks[experiment["id"]] = bars.add_task("", total=None, unit="")
        task = tasks[experiment["id"]]
        name = experiment["name"] or experiment["id"]
        bars.update(task, description=f"{name}  {experiment['status']}")
        if progress := experiment["progress"]:
            done, total = progress["done"], progress["total"]
            bars.update(task, completed=done, total=total, unit=progress["unit"])

    try:
        yield show
    finally:
        if tasks:
            bars.stop()
