"""Standing of the paper's presets, and their verdicts in the terminal."""

from datetime import datetime

import typer

from mptlab.client import Client
from mptlab.commands.context import print_table
from mptlab.errors import Json
from mptlab.tables import HALF_WIDTH, with_error


def standing(client: Client, preset: Json, last: Json) -> Json:
    """Return a preset's row: its name, its inputs, the time of its last runs, and the verdict on
    them, or their status."""
    status, took = last["status"], None
    if status == "succeeded":
        status = client.verdict(preset["name"], last["runs"])["verdict"]
        took = f"{sum(map(_seconds, last['runs'])):.0f} s"
    title = preset["title"]
    needs = ", ".join(preset["needs"]) or None
    return {"name": preset["name"], "title": title, "needs": needs, "took": took, "status": status}


def newest_runs(client: Client, preset: str) -> list[str]:
    """Return the ids of a preset's newest runs, as many as there are."""
    found = (one["runs"] for one in client.preset_runs() if one["name"] == preset)
    return [run["id"] for run in next(found, []) if run is not None]


def _seconds(run: Json) -> float:
    started, finished = (
        datetime.fromisoformat(run[f"{part}_at"]) for part in ("started", "finished")
    )
    return (finished - started).total_seconds()


def print_verdict(told: Json) -> None:
    """Print each comparison, rounded by its error, and the verdict."""
    rows = []
    for one in told["comparisons"]:
        error = one.get("half_width")
        measured = with_error(one["measured"], error)
        rows.append([one["what"], one["published"], measured, one["low"], one["high"],
                     one["outcome"], one["power"]])  # fmt: skip
    headers = ("what", "published", "measured", "agrees from", "to", "outcome", "power")
    print_table(headers, rows)
    if any(one.get("half_width") for one in told["comparisons"]):
        typer.echo(HALF_WIDTH)
    typer.echo("Power is the probability to find agreement where it is true")
    typer.echo(told["verdict"] + (f": {told['missing']}" if told["missing"] else ""))
