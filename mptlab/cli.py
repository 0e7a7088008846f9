"""The command `mpt`."""

import json
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from mptlab import __version__, admin
from mptlab import serve as server
from mptlab.api import Client, Refused, store
from mptlab.progress import shown_progress


class Queue(StrEnum):
    """The kinds of worker."""

    cpu = "cpu"
    gpu = "gpu"


app = typer.Typer(no_args_is_help=True)
app.add_typer(admin.app, name="admin")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mpt {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="show it and exit"),
    ] = False,
) -> None:
    """Submit experiments to MPT Lab, read what came out."""


SpecFile = Annotated[typer.FileText, typer.Argument(help="the spec as JSON; - is standard input")]
ExperimentId = Annotated[str, typer.Argument(help="the id that submit printed")]


@app.command()
def serve(
    port: Annotated[int, typer.Option(help="of the loopback interface; 0 is any free one")] = 8765,
) -> None:
    """Run the service on this machine: API and one worker, SQLite in the store."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    port = port or server.free_port()
    with server.embedded(store(), port) as revive:
        url = f"http://127.0.0.1:{port}"
        with Client(url, server.store_key(store())) as client:
            server.wait_until(client.is_ready)
            page = client.sign_in_url()
        typer.echo(f"serving {url}, store {store()}; stop with Ctrl-C")
        typer.echo(f"open {page} in a browser: the link signs in once, within ten minutes")
        try:
            server.keep(revive)
        except KeyboardInterrupt:
            typer.echo("stopping")


@app.command()
def migrate() -> None:
    """Lab mode: bring the database to the newest schema and make the first admin's key."""
    server.become("service.prepare")


@app.command()
def api(
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="the port to listen on")] = 8765,
) -> None:
    """Lab mode: an API process; any number may run."""
    server.become("service", "--host", host, "--port", str(port))


@app.command()
def dispatcher() -> None:
    """Lab mode: chooses what runs next and rings a worker; any number may run."""
    server.become("worker.dispatcher")


@app.command()
def reaper() -> None:
    """Lab mode: puts back what a lost worker left; any number may run."""
    server.become("worker.reaper")


@app.command()
def worker(
    queue: Annotated[Queue, typer.Argument(help="what it works for")] = Queue.cpu,
    lifetime: Annotated[
        str | None, typer.Option(help="end after so long (90s, 45m, 3h), its run handed back")
    ] = None,
) -> None:
    """Lab mode: a worker of one slot; pin it to a GPU by CUDA_VISIBLE_DEVICES."""
    server.become("worker.node", queue.value, *(["--lifetime", lifetime] if lifetime else []))


BackupFolder = Annotated[Path, typer.Argument(help="where the backup lies")]
StoreOnly = Annotated[
    bool, typer.Option("--store-only", help="the files; the database is seen to where it runs")
]


@app.command()
def backup(folder: BackupFolder, store_only: StoreOnly = False) -> None:
    """On the server: save the database and the store, consistent with each other, while all
    runs."""
    server.become("service.backup", "save", str(folder), *(["--store-only"] if store_only else []))


@app.command()
def restore(folder: BackupFolder, store_only: StoreOnly = False) -> None:
    """On the server: put a backup into an empty database and an empty store, the service
    stopped."""
    arguments = [str(folder), *(["--store-only"] if store_only else [])]
    server.become("service.backup", "restore", *arguments)


@app.command()
def submit(
    spec: SpecFile,
    name: Annotated[str | None, typer.Option(help="to find it by")] = None,
    share: Annotated[bool, typer.Option("--share", help="let the lab read it")] = False,
    wait_for_end: Annotated[bool, typer.Option("--wait", help="show progress to the end")] = False,
) -> None:
    """Queue an experiment, and print its id."""
    with Client() as client:
        try:
            value = json.load(spec)
        except ValueError as error:
            raise typer.BadParameter(f"not valid JSON: {error}") from None
        beside = {**({"name": name} if name else {}), **({"visibility": "lab"} if share else {})}
        experiment = client.submit(value, **beside)
        typer.echo(experiment["id"])
        if wait_for_end:
            _wait(client, experiment["id"])


@app.command()
def wait(experiment_id: ExperimentId) -> None:
    """Show an experiment's progress to its end, then its metrics; exit status 1 unless it
    succeeded."""
    with Client() as client:
        _wait(client, experiment_id)


@app.command()
def queue() -> None:
    """Print your share of the server (as Slurm's sshare does), and what you have waiting."""
    with Client() as client:
        found = client.queue()
    share = found["share"]
    columns = ("RawShares", "NormShares", "RawUsage", "EffectvUsage", "LevelFS", "FairShare")
    names = ("raw_shares", "norm_shares", "raw_usage", "effectv_usage", "level_fs", "fair_share")
    typer.echo(" ".join(f"{column:>12}" for column in columns))
    typer.echo(" ".join(f"{_figure(share[name]):>12}" for name in names))
    running, submitted = (
        _of(found[name], found[f"max_{name}"]) for name in ("running", "submitted")
    )
    typer.echo(f"running {running}, submitted {submitted}")
    if (most := found["max_gpu_hours_a_day"]) is not None:
        typer.echo(f"GPU-hours within 24: {found['gpu_hours']:.3g} of {most:g}")
    for one in found["items"]:
        place = one["queue"]
        start = place["estimated_start"] or "unknown"
        typer.echo(f"{one['id']}  {place['reason']}; starts: {start}")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _of(count: int, most: int | None) -> str:
    return f"{count}" if most is None else f"{count} of {most}"


@app.command()
def curves(
    experiment_id: ExperimentId,
    series: Annotated[str | None, typer.Option(help="only the series of this name")] = None,
    output: Annotated[Path | None, typer.Option(help="a file instead of standard output")] = None,
) -> None:
    """Print an experiment's curves as JSON."""
    with Client() as client:
        text = json.dumps(client.curves(experiment_id, series), indent=2)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text + "\n")


def _wait(client: Client, experiment_id: str) -> None:
    with shown_progress(Console(stderr=True)) as show:
        experiment = client.wait(experiment_id, on_change=show)
    for metric in experiment["metrics"]:
        typer.echo(_line(metric))
    if experiment["status"] != "succeeded":
        failure = experiment["failure"]
        reason = f": {failure['kind']}: {failure['message']}" if failure else ""
        typer.echo(f"{experiment['status']}{reason}", err=True)
        raise typer.Exit(1)


def _line(metric: dict[str, Any]) -> str:
    labels = " ".join(f"{key}={value}" for key, value in metric["labels"].items())
    number = metric["value"] if metric["value"] is not None else metric["reason"]
    error = f" ± {metric['std_err']:.4g}" if metric["std_err"] else ""
    return f"{metric['name']:16} {labels:12} {number}{error}"


def main() -> None:
    """Run a command; an answer that is a refusal becomes one line and exit status 1."""
    try:
        app()
    except (Refused, httpx.TransportError, RuntimeError) as error:
        typer.echo(f"mpt: {error}", err=True)
        sys.exit(1)
