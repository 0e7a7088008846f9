"""A progress bar fed by the server's own progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


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
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(experiment: dict[str, Any]) -> None:
            task = tasks.get(experiment["id"])
            if task is None:
                task = bars.add_task("", total=None, unit="")
                tasks[experiment["id"]] = task
            name = experiment["name"] or experiment["id"]
            bars.update(task, description=f"{name}  {experiment['status']}")
            if progress := experiment["progress"]:
                bars.update(
                    task,
                    completed=progress["done"],
                    total=progress["total"],
                    unit=progress["unit"],
                )

        yield show
