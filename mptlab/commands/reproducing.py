"""The command that reproduces the paper."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from mptlab import reproduce as presets
from mptlab import serve
from mptlab.client import Client
from mptlab.commands.context import AsJson, Url, connected
from mptlab.commands.following import RUN_FAILED, comes_back
from mptlab.config import store
from mptlab.errors import Refused
from mptlab.progress import followed
from mptlab.reproduce import Outcome

app = typer.Typer()


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="presets; default: all", metavar="PRESET")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="run slow presets in a short form, without a verdict")
    ] = False,
    folder: Annotated[Path, typer.Option("--report", help="folder of the report")] = Path("report"),
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Run the paper's tables and figures, and write a report on what agrees. If no service
    answers, one runs until the end. Results that the service already has are used. Exit status 3
    if a preset differs."""
    from mptlab import report  # which needs matplotlib

    with _service(url) as client:
        outcomes = presets.submitted(client, presets.chosen(client, names or ()), quick)
        typer.echo(_announced(client, outcomes), err=True)
        with comes_back("reproduce", [*(names or ())]), followed() as show:
            presets.finish(client, outcomes, show)
    page = report.write(outcomes, folder)
    if as_json:
        typer.echo(json.dumps([outcome.summary() for outcome in outcomes], indent=2))
    else:
        lines = [f"{outcome.name:28} {outcome.status}{_because(outcome)}" for outcome in outcomes]
        typer.echo("\n".join([*lines, report.counted(outcomes), f"report: {page}"]))
    if any(outcome.status in ("differs", "incomplete") for outcome in outcomes):
        raise typer.Exit(RUN_FAILED)


def _because(outcome: Outcome) -> str:
    return f": {outcome.failure}" if outcome.failure else ""


def _announced(client: Client, outcomes: Sequence[Outcome]) -> str:
    """Return how long the experiments will take."""
    low, high, unknown = presets.expected_s(client, outcomes)
    if not high and not unknown:
        return "everything is computed already"
    known = f"about {low / 60:.1f} to {high / 60:.1f} min of one worker" if high else "unknown time"
    others = f", and {unknown} experiments whose time is unknown" if high and unknown else ""
    return f"expected: {known}{others}"


@contextmanager
def _service(url: str | None) -> Iterator[Client]:
    """Yield a client of the running service. If none is named and none runs on this machine, run
    one in the meantime."""
    is_named = url or os.environ.get("MPT_URL")
    try:
        with connected(url) as client:
            if is_named or client.is_ready():
                yield client
                return
    except Refused:  # no key: no service has ever run here
        if is_named:
            raise
    port = serve.free_port()
    with serve.embedded(store(), port, store() / "reproduce.log", serve.usual_workers()):
        with Client(f"http://127.0.0.1:{port}", serve.store_key(store())) as client:
            serve.wait_until(client.is_ready)
            yield client
