"""Commands that run the service, or parts of it."""

import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from mptlab import serve as server
from mptlab.client import Client
from mptlab.config import store

app = typer.Typer()


@app.command()
def serve(
    port: Annotated[
        int, typer.Option(help="loopback port; 0 means any free port", min=0, max=65535)
    ] = 8765,
    workers: Annotated[
        int | None,
        typer.Option(
            help="runs at the same time; default: one for each two processors, at most 4",
            min=1,
            max=64,
        ),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu"],
        typer.Option(help="auto: one more run at a time on each GPU of this machine"),
    ] = "auto",
) -> None:
    """Run the service on this machine: the API and its workers, with SQLite in the store. A
    terminal shows when runs begin and end; without one a file in the store has the log."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    port = port or server.free_port()
    count = workers or server.usual_workers()
    with_gpus = device == "auto" and server.has_gpu()
    log = None if sys.stderr.isatty() else store() / "serve.log"
    with server.embedded(store(), port, log, count, with_gpus=with_gpus) as revive:
        url = f"http://127.0.0.1:{port}"
        with Client(url, server.store_key(store())) as client:
            server.wait_until(client.is_ready)
            page = client.sign_in_url()
        of = "1 worker" if count == 1 else f"{count} workers"
        of += " and the GPUs" if with_gpus else ""
        typer.echo(f"serving {url} with {of}, store {store()}; stop with Ctrl-C")
        typer.echo(f"open {page} in a browser: the link signs in once, within ten minutes")
        if log is not None:
            typer.echo(f"log: {log}")
        try:
            server.keep(revive)
        except KeyboardInterrupt:
            typer.echo("stopping")


@app.command()
def migrate() -> None:
    """Lab mode: migrate the database to the newest schema and create the first admin's key."""
    server.become("service.operations.prepare")


@app.command()
def api(
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="the port to listen on", min=1, max=65535)] = 8765,
) -> None:
    """Lab mode: run an API process. You can run several."""
    server.become("service", "--host", host, "--port", str(port))


@app.command()
def controller() -> None:
    """Lab mode: run the controller, which wakes workers, requeues the runs of lost ones, sends
    webhooks and deletes old files. One works at a time; a second one takes over if it fails."""
    server.become("worker.controller")


@app.command()
def worker(
    queue: Annotated[str, typer.Argument(help="queue that it serves: cpu or gpu")] = "cpu",
    lifetime: Annotated[
        str | None, typer.Option(help="stop after this time (90s, 45m, 3h) and requeue its run")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="one worker for each GPU of this machine")
    ] = False,
    slots: Annotated[
        int,
        typer.Option(help="with --all: workers for each GPU, whose runs share it", min=1, max=16),
    ] = 1,
) -> None:
    """Lab mode: run a worker with one slot. A GPU worker uses the GPU with the fewest workers,
    among all GPUs or those in CUDA_VISIBLE_DEVICES."""
    if every and queue != "gpu":
        raise typer.BadParameter("--all works only with the queue gpu")
    if slots > 1 and not every:
        raise typer.BadParameter("--slots works only with --all")
    part = ["worker.every_gpu"] if every else ["worker", queue]
    several = ["--slots", str(slots)] if slots > 1 else []
    server.become(*part, *several, *(["--lifetime", lifetime] if lifetime else []))


BackupFolder = Annotated[Path, typer.Argument(help="folder of the backup")]
StoreOnly = Annotated[
    bool, typer.Option("--store-only", help="only files; the database is dumped separately")
]


@app.command()
def backup(
    folder: BackupFolder,
    store_only: StoreOnly = False,
    finish: Annotated[
        bool, typer.Option("--finish", help="with --store-only, after dumping the database")
    ] = False,
) -> None:
    """On the server: save the database and the store, consistent with each other, while the service
    runs. At the end, files that the store no longer has are deleted from the backup folder."""
    if finish and not store_only:
        raise typer.BadParameter("--finish works only with --store-only")
    words = [*(["--store-only"] if store_only else []), *(["--finish"] if finish else [])]
    server.become("service.operations.backup", "save", str(folder), *words)


@app.command()
def restore(folder: BackupFolder, store_only: StoreOnly = False) -> None:
    """On the server: restore a backup into an empty database and an empty store. Stop the service
    first."""
    arguments = [str(folder), *(["--store-only"] if store_only else [])]
    server.become("service.operations.backup", "restore", *arguments)
