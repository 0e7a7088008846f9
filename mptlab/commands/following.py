"""Waiting for experiments at the terminal."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from mptlab.commands.context import CommandContext, warn
from mptlab.errors import Json, NotSucceeded
from mptlab.progress import followed, printable

RUN_FAILED = 3


def follow(context: CommandContext, ids: Sequence[str]) -> list[Json]:
    """Show how far experiments are until all have ended; how they did."""
    with comes_back("watch", ids), followed() as show:
        return [context.client.wait(one, on_change=show) for one in ids]


def print_ended(ended: Sequence[Json]) -> None:
    """The metrics of experiments, under their ids where there are several."""
    for one in ended:
        if len(ended) > 1:
            typer.echo(f"{one['id']}  {printable(one['name'] or '')}".rstrip())
        print_metrics(one)


def exit_unless_succeeded(ended: Sequence[Json]) -> None:
    """Say what has not succeeded, and end the command with status 3 where anything has not."""
    told = [str(NotSucceeded(one)) for one in ended if one["status"] != "succeeded"]
    for one in told:
        warn(one)
    if told:
        raise typer.Exit(RUN_FAILED)


@contextmanager
def comes_back(command: str, ids: Sequence[str]) -> Iterator[None]:
    """Ctrl-C ends the waiting alone, and says so."""
    try:
        yield
    except KeyboardInterrupt:
        names = " ".join(ids)
        told = f"the run goes on; come back to it: mpt {command} {names}"
        warn(told if command != "watch" else f"{told}; end it: mpt cancel {names}")
        raise


def print_metrics(experiment: Json) -> None:
    for metric in experiment["metrics"]:
        typer.echo(_line(metric))


def _line(metric: Json) -> str:
    labels = " ".join(f"{key}={value}" for key, value in metric["labels"].items())
    number = metric["value"] if metric["value"] is not None else metric["reason"]
    error = f" ± {metric['std_err']:.4g}" if metric["std_err"] else ""
    return f"{metric['name']:16} {labels:12} {number}{error}"
