"""Commands that run the paper's presets, and compare their results with the published values."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from mptlab import reproduce as reproduction
from mptlab import serve
from mptlab.client import Client
from mptlab.commands.completion import preset_names
from mptlab.commands.context import (
    AsJson,
    CommandContext,
    OptionalIds,
    Url,
    connected,
    print_table,
    with_context,
)
from mptlab.commands.following import RUN_FAILED, comes_back, exit_unless_succeeded
from mptlab.commands.submitting import (
    InProject,
    Share,
    Tags,
    Watch,
    beside_of,
    followed,
)
from mptlab.config import store
from mptlab.errors import Json, Refused
from mptlab.progress import followed as progress_of
from mptlab.reproduce import Outcome
from mptlab.tables import HALF_WIDTH, with_error

app = typer.Typer()
presets_app = typer.Typer(no_args_is_help=False)
app.add_typer(presets_app, name="presets")


Preset = Annotated[str, typer.Argument(help="its name", autocompletion=preset_names)]


@presets_app.callback(invoke_without_command=True)
def presets(context: typer.Context, url: Url = None, as_json: AsJson = False) -> None:
    """The paper's tables and figures. Without a command, list them."""
    if context.invoked_subcommand is None:
        list_presets(url=url, as_json=as_json)
    elif url or as_json:
        raise typer.BadParameter("give --url and --json after the command")


@presets_app.command("list")
@with_context
def list_presets(context: CommandContext) -> None:
    """List the presets: what each needs, how long its last runs took, and what they found."""
    all_presets = context.client.presets()
    if context.as_json:
        return context.dump(all_presets)
    last = {preset["name"]: preset for preset in context.client.preset_runs()}
    rows = [_standing(context.client, preset, last[preset["name"]]) for preset in all_presets]
    print_table(rows[0], (row.values() for row in rows))


@presets_app.command("run")
@with_context
def run_preset(
    context: CommandContext,
    preset: Preset,
    tag: Tags = None,
    share: Share = False,
    project: InProject = None,
    watch: Watch = False,
) -> None:
    """Queue an experiment for each of the preset's specs, and print the ids in the order that
    verdict needs."""
    beside = beside_of(None, tag, share, no_cache=False, project=project)
    runs = context.client.run_preset(preset, **beside)
    seen = followed(context, [run.document for run in runs], watch)
    if context.as_json:
        context.dump(seen)
    if watch:
        exit_unless_succeeded(seen)
        if not context.as_json:
            _print_verdict(context.client.verdict(preset, seen))
            context.advise(f"mpt reproduce {preset}, which draws its figures from these runs")


@presets_app.command("spec")
@with_context
def print_spec(context: CommandContext, preset: Preset) -> None:
    """Print the preset's first spec, as a beginning of your own."""
    context.dump(context.client.preset(preset)["specs"][0])


@app.command()
@with_context
def verdict(
    context: CommandContext,
    preset: Preset,
    experiments: OptionalIds = None,
) -> None:
    """Compare experiments that ran a preset's specs, in order, or its newest runs, with the
    published values. Exit status 3 unless they agree."""
    ids = context.ids(experiments or ())
    if not ids:
        newest = {one["name"]: one["runs"] for one in context.client.preset_runs()}
        ids = [run["id"] for run in newest.get(preset, ()) if run is not None]
    judged = context.client.verdict(preset, ids)
    context.dump(judged) if context.as_json else _print_verdict(judged)
    if judged["verdict"] != "agrees":
        raise typer.Exit(RUN_FAILED)


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
        outcomes = reproduction.submitted(client, reproduction.chosen(client, names or ()), quick)
        typer.echo(_announced(client, outcomes), err=True)
        with comes_back("reproduce", [*(names or ())]), progress_of() as show:
            reproduction.finish(client, outcomes, show)
    page = report.write(outcomes, folder)
    if as_json:
        typer.echo(json.dumps([outcome.summary() for outcome in outcomes], indent=2))
    else:
        lines = []
        for outcome in outcomes:
            reason = f": {outcome.failure}" if outcome.failure else ""
            lines.append(f"{outcome.name:28} {outcome.status}{reason}")
        typer.echo("\n".join([*lines, report.counted(outcomes), f"report: {page}"]))
    if any(outcome.status in ("differs", "incomplete") for outcome in outcomes):
        raise typer.Exit(RUN_FAILED)


def _announced(client: Client, outcomes: Sequence[Outcome]) -> str:
    """Return how long the experiments will take."""
    low, high, unknown = reproduction.expected_s(client, outcomes)
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


def _standing(client: Client, preset: Json, last: Json) -> Json:
    """Return a preset's row: its name, its inputs, the time of its last runs, and the verdict on
    them, or their status."""
    status, took = last["status"], None
    if status == "succeeded":
        status = client.verdict(preset["name"], last["runs"])["verdict"]
        took = f"{sum(map(_seconds, last['runs'])):.0f} s"
    title = preset["title"]
    needs = ", ".join(preset["needs"]) or None
    return {"name": preset["name"], "title": title, "needs": needs, "took": took, "status": status}


def _seconds(run: Json) -> float:
    started, finished = (
        datetime.fromisoformat(run[f"{part}_at"]) for part in ("started", "finished")
    )
    return (finished - started).total_seconds()


def _print_verdict(verdict: Json) -> None:
    """Print each comparison, rounded by its error, and the verdict."""
    rows = []
    for comparison in verdict["comparisons"]:
        error = comparison.get("half_width")
        measured = with_error(comparison["measured"], error)
        names = ("low", "high", "outcome", "power")
        rows.append([comparison["what"], comparison["published"], measured,
                     *(comparison[name] for name in names)])  # fmt: skip
    headers = ("what", "published", "measured", "agrees from", "to", "outcome", "power")
    print_table(headers, rows)
    if any(comparison.get("half_width") for comparison in verdict["comparisons"]):
        typer.echo(HALF_WIDTH)
    typer.echo("Power is the probability to find agreement where it is true")
    typer.echo(verdict["verdict"] + (f": {verdict['missing']}" if verdict["missing"] else ""))
