"""Wait for experiments in the terminal."""

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice

import typer

from mptlab.client import Client
from mptlab.commands.context import WITHOUT_ERROR, CommandContext, warn
from mptlab.errors import Json, NotSucceeded
from mptlab.progress import followed, printable, sparkline
from mptlab.tables import with_error

RUN_FAILED = 3
MAX_NAMED = 5
"""Maximum number of experiments whose ids are printed when the waiting ends."""
NUMBER = 20
"""Characters of a number with its error."""
INTERIM = ("epoch", "step")
"""Labels of metrics that are not final."""
OBJECTIVE = "loss"
READ_EVERY_S = 2.0
MAX_POINTS = 1000
"""Maximum number of points of all curves of an experiment that are read for its sparkline."""
MAX_LOGS = 10
"""Maximum number of experiments whose logs are read for warnings."""


def follow(context: CommandContext, ids: Sequence[str]) -> list[Json]:
    """Show the progress of experiments until all have ended, in a terminal with the latest results
    and the objective of the training; return their last documents."""
    training = _Training(context.client) if sys.stderr.isatty() else None
    with comes_back("watch", ids), followed() as show:

        def show_latest(document: Json) -> None:
            show(document | {"latest": training.latest(document)} if training else document)

        return [context.client.wait(experiment_id, on_change=show_latest) for experiment_id in ids]


class _Training:
    """Reads the objective of trainings from time to time."""

    def __init__(self, client: Client):
        self._client = client
        self._read: dict[str, tuple[float, str]] = {}

    def latest(self, experiment: Json) -> str:
        """Return the objective that each epoch or step of the first seed recorded, as a sparkline
        with its last value, and the latest results."""
        at, line = self._read.get(experiment["id"], (-math.inf, ""))
        if experiment["status"] == "running" and time.monotonic() > at + READ_EVERY_S:
            line = self._objective(experiment["id"])
            self._read[experiment["id"]] = time.monotonic(), line
        results = [
            f"{row['label']} {with_error(row['value'], row['std_err'])}"
            for row in experiment.get("summary") or ()
            if row["label"] is not None and row["value"] is not None
        ]
        return "  ".join(part for part in (line, *results[:2]) if part)

    def _objective(self, experiment_id: str) -> str:
        curves = self._client.curves(experiment_id, max_points=MAX_POINTS)
        values = [
            value
            for curve in [curve for curve in curves if curve["name"] == OBJECTIVE][:1]
            for value in curve["value"]
            if value is not None
        ]
        return f"{OBJECTIVE} {sparkline(values)} {values[-1]:.6g}" if values else ""


def lacks_error(metrics: Iterable[Json]) -> bool:
    """Return whether a score has a value and no error."""
    return any(
        metric["name"].split("_")[0] in ("mpt", "biased")
        and metric["value"] is not None
        and metric["std_err"] is None
        for metric in metrics
    )


def print_ended(ended: Sequence[Json]) -> None:
    """Print the metrics of experiments; if there are several, under their ids."""
    for experiment in ended:
        if len(ended) > 1:
            typer.echo(f"{experiment['id']}  {printable(experiment['name'] or '')}".rstrip())
        for line in chain(result_lines(experiment), metric_lines(experiment)):
            typer.echo(line)
    if any(lacks_error(experiment["metrics"]) for experiment in ended):
        warn(WITHOUT_ERROR)


def print_warnings(context: CommandContext, names: Mapping[str, str]) -> None:
    """Print each warning in the logs of the first experiments once, on stderr, with the names of
    the experiments that have it if others do not. `names` has them by id."""
    read = [*islice(names, MAX_LOGS)]
    warnings: dict[str, dict[str, None]] = {}
    for experiment_id in read:
        for line in context.client.logs(experiment_id, "warning"):
            warnings.setdefault(line["message"], {})[names[experiment_id]] = None
    for message, having in warnings.items():
        listed = f" ({'; '.join(having)})" if len(having) < len(read) else ""
        warn(f"{message}{listed}")


def exit_unless_succeeded(ended: Sequence[Json]) -> None:
    """Print the experiments that did not succeed, and exit with status 3 if there are any."""
    messages = [str(NotSucceeded(run)) for run in ended if run["status"] != "succeeded"]
    for message in messages:
        warn(message)
    if messages:
        raise typer.Exit(RUN_FAILED)


@contextmanager
def comes_back(command: str, ids: Sequence[str]) -> Iterator[None]:
    """Let Ctrl-C end only the waiting, and print a message."""
    try:
        yield
    except KeyboardInterrupt:
        if len(ids) > MAX_NAMED:
            warn(f"the {len(ids)} runs continue; mpt list shows them")
            raise
        names = " ".join(ids)
        advice = f"the run continues; to watch it again: mpt {command} {names}"
        warn(advice if command != "watch" else f"{advice}; to cancel it: mpt cancel {names}")
        raise


def result_lines(experiment: Json) -> Iterator[str]:
    """Yield the results of an experiment: means over seeds, after training, and below them what
    they were before."""
    results = [row for row in experiment["summary"] or () if row["label"] is not None]
    width = max([16, *(len(row["label"]) for row in results)])
    for row in results:
        number = with_error(row["value"], row["std_err"]) or row["reason"] or "-"
        yield f"{row['label']:{width}} {number}{_beside_result(row)}"
        if before := row["before"]:
            at = " ".join(f"{unit} {time}" for unit, time in before["at"].items())
            first = with_error(before["value"], before["std_err"]) or "-"
            yield f"{'':{width}} {first} at {at} → {number}"


def _beside_result(row: Json) -> str:
    """Return what to print after the value of a result: its unit, the number of seeds, and whether
    it agrees with the LML."""
    if row["value"] is None:
        return ""
    unit = f" {row['unit']}" if row["unit"] else ""
    seeds = f", mean over {row['count']} seeds" if row["count"] > 1 else ""
    tokens = ""
    if row["tokens"]:
        tokens = f" = {row['value'] / row['tokens']:.5g} × {row['tokens']} tokens"
    agreement = ""
    if difference := row["agreement"]:
        gap = with_error(difference["value"], difference["std_err"])
        agreement = f"; {difference['text']}: MPT - LML is {gap}"
    return f"{unit}{tokens}{seeds}{agreement}"


def metric_lines(experiment: Json) -> Iterator[str]:
    """Yield a line for each metric, final ones first, with its meaning where its name stands for
    the first time."""
    meanings = {row["name"]: row["meaning"] for row in experiment["summary"] or ()}
    metrics = sorted(experiment["metrics"], key=lambda row: bool({*INTERIM} & {*row["labels"]}))
    seen = set()
    width = max([16, *(len(metric["name"]) for metric in metrics)])
    for metric in metrics:
        labels = " ".join(f"{key}={value}" for key, value in metric["labels"].items())
        number = with_error(metric["value"], metric["std_err"]) or metric["reason"] or "-"
        meaning = "" if metric["name"] in seen else meanings.get(metric["name"], "")
        seen.add(metric["name"])
        yield f"{metric['name']:{width}} {labels:12} {number:{NUMBER}}  {meaning}".rstrip()
