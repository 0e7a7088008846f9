"""The command line `mpt`."""

import os
import sys
from typing import Annotated

import httpx
import typer

from mptlab import __version__
from mptlab.commands import (
    admin,
    changing,
    presets,
    reading,
    server,
    submitting,
    texts,
)
from mptlab.commands.context import warn
from mptlab.commands.following import RUN_FAILED
from mptlab.errors import NoAnswer, NotSucceeded, Refused

REFUSED, NO_ANSWER = 1, 4
"""Exit statuses, besides 0 (success), RUN_FAILED, 2 (usage error) and 130 (Ctrl-C)."""

app = typer.Typer(no_args_is_help=True)
for theme in (submitting, presets, reading, texts, changing, server):
    app.add_typer(theme.app)
app.add_typer(admin.app, name="admin")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mpt {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="show the version and exit"
        ),
    ] = False,
) -> None:
    """Submit experiments to MPT Lab and read their results. Exit status: 0 success, 1 refused, 2
    usage error, 3 the run failed, 4 the service does not answer, 130 Ctrl-C."""


def main() -> None:
    """Run a command; print an error as one line and set the exit status."""
    try:
        app()
    except Exception as error:
        if (status := _status_of(error)) is None:
            raise
        warn(_line_of(error))
        sys.exit(status)


def _status_of(error: Exception) -> int | None:
    """Return the exit status for an error; None if the error is a bug in `mpt`."""
    match error:
        case Refused():
            return NO_ANSWER if error.is_away else REFUSED
        case NotSucceeded():
            return RUN_FAILED
        case NoAnswer() | TimeoutError() | httpx.TransportError():
            return NO_ANSWER
        case OSError() | ValueError() | RuntimeError() | ImportError() | httpx.InvalidURL():
            return REFUSED
    return None


def _line_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.errno:
        return f"{os.fspath(error.filename)!s}: {os.strerror(error.errno)}"
    return " ".join(str(error).split())
