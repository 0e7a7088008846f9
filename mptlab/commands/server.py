"""The commands that run the service, or parts of it."""

import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mptlab import serve as server
from mptlab.api import Client, store

app = typer.Typer()


class Queue(StrEnum):
    """The kinds of worker."""

    cpu = "cpu"
    gpu = "gpu"


@app.command()
def serve(
    port: Annotated[
        int, typer.Option(help="of the loopback interface; 0 is any free one", min=0, max=65535)
    ] = 8765,
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
    server.become("service.operations.prepare")


@app.command()
def api(
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="the port to listen on", min=1, max=65535)] = 8765,
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
    every: Annotated[
        bool, typer.Option("--all", help="a worker for each GPU of this machine, pinned to it")
    ] = False,
) -> None:
    """Lab mode: a worker of one slot. One for GPUs takes the GPU with the fewest workers, of all or
    of those that CUDA_VISIBLE_DEVICES names."""
    if every and queue != Queue.gpu:
        raise typer.BadParameter("--all is for workers of the queue gpu")
    part = ["worker.every_gpu"] if every else ["worker.node", queue.value]
    server.become(*part, *(["--lifetime", lifetime] if lifetime else []))


BackupFolder = Annotated[Path, typer.Argument(help="where the backup lies")]
StoreOnly = Annotated[
    bool, typer.Option("--store-only", help="the files; the database is seen to where it runs")
]


@app.command()
def backup(
    folder: BackupFolder,
    store_only: StoreOnly = False,
    finish: Annotated[
        bool, typer.Option("--finish", help="with --store-only: after the database was dumped")
    ] = False,
) -> None:
    """On the server: save the database and the store, consistent with each other, while the
    service runs. Files that the store has lost are deleted from the folder at the end."""
    if finish and not store_only:
        raise typer.BadParameter("--finish belongs to --store-only: a whole backup needs it not")
    words = [*(["--store-only"] if store_only else []), *(["--finish"] if finish else [])]
    server.become("service.operations.backup", "save", str(folder), *words)


@app.command()
def restore(folder: BackupFolder, store_only: StoreOnly = False) -> None:
    """On the server: put a backup into an empty database and an empty store, the service
    stopped."""
    arguments = [str(folder), *(["--store-only"] if store_only else [])]
    server.become("service.operations.backup", "restore", *arguments)
