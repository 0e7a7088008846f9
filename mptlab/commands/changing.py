"""Commands that change experiments, uploads and the stored login."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from mptlab import login as logins
from mptlab.client import Client
from mptlab.commands.context import CommandContext, ExperimentIds, OptionalIds, with_context
from mptlab.commands.own_data import (
    Decimal,
    DropNonNumeric,
    Header,
    Index,
    Sep,
    Thousands,
    reading_options,
    warn_of_missing,
)
from mptlab.errors import Json
from mptlab.progress import printable

app = typer.Typer()


@app.command()
@with_context
def cancel(
    context: CommandContext,
    experiment_ids: OptionalIds = None,
    user: Annotated[str | None, typer.Option(help="all of this user (for admins)")] = None,
    status: Annotated[list[str] | None, typer.Option(help="all with this status")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="all with this tag")] = None,
    filter: Annotated[str | None, typer.Option(help="all that match; see docs/api.md")] = None,
) -> None:
    """Cancel the given experiments, or all unfinished experiments that match every option."""
    given = {"owner": user, "status": status, "tag": tag, "filter": filter}
    filters = {name: value for name, value in given.items() if value}
    if bool(experiment_ids) == bool(filters):
        raise typer.BadParameter("name experiments, or select some with options: see --help")
    if experiment_ids:
        return _each(context, experiment_ids, context.client.cancel)
    found = context.client.cancel_matching(**filters, whose="all" if user else "mine")
    told = f"{found['cancelled']} cancelled, {found['ending']} running will end soon"
    context.tell(found, [told])


@app.command()
@with_context
def pause(context: CommandContext, experiment_ids: ExperimentIds) -> None:
    """Pause experiments; a running experiment saves a checkpoint first."""
    _each(context, experiment_ids, context.client.pause)


@app.command()
@with_context
def resume(context: CommandContext, experiment_ids: ExperimentIds) -> None:
    """Put paused experiments back in the queue."""
    _each(context, experiment_ids, context.client.resume)


@app.command()
@with_context
def retry(context: CommandContext, experiment_ids: ExperimentIds) -> None:
    """Queue copies of experiments that failed or were cancelled, and print their ids."""
    _each(context, experiment_ids, context.client.retry)


@app.command()
@with_context
def delete(
    context: CommandContext,
    experiment_ids: ExperimentIds,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="delete without asking")] = False,
) -> None:
    """Delete experiments that are not running, after confirmation. `mpt undelete` restores them
    while their files still exist."""
    found = [context.client.get(one) for one in context.ids(experiment_ids)]
    if not yes:
        _ask_to_delete(found)
    for one in found:
        context.client.delete(one)
        if not context.as_json:
            typer.echo(f"deleted {_named(one)}")
    if context.as_json:
        context.dump([{"id": one["id"], "name": one["name"]} for one in found])


@app.command()
@with_context
def undelete(context: CommandContext, experiment_ids: ExperimentIds) -> None:
    """Restore deleted experiments while their files still exist. Give complete ids."""
    _each(context, experiment_ids, context.client.undelete)


def _ask_to_delete(found: Sequence[Json]) -> None:
    """Raises Abort if the user answers no, and BadParameter if there is no terminal to ask."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("cannot ask for confirmation here: give --yes")
    for one in found:
        typer.echo(f"  {_named(one)} {one['status']}", err=True)
    noun = "experiment" if len(found) == 1 else "experiments"
    typer.confirm(f"Delete {len(found)} {noun}?", abort=True, err=True)


def _named(one: Json) -> str:
    return f"{one['id']} {printable(one['name'] or '')}".rstrip()


@app.command()
@with_context
def upload(
    context: CommandContext,
    file: Annotated[
        Path,
        typer.Argument(help=".npy, .npz, .csv, .tsv, .parquet, .txt or .jsonl",
                       exists=True, dir_okay=False, readable=True),
    ],
    index: Index = None,
    header: Header = None,
    sep: Sep = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    drop_non_numeric: DropNonNumeric = False,
) -> None:  # fmt: skip
    """Upload a data set, and print its id. What was read of it is printed on standard error."""
    options = reading_options(index, header, sep, decimal, thousands, drop_non_numeric)
    made = context.client.upload(file, **options)
    warn_of_missing(made)
    context.tell(made, [made["id"]])


@app.command()
def login(
    url: Annotated[str, typer.Option(help="URL of the service", prompt="URL")],
    key: Annotated[str, typer.Option(help="your API key", prompt="API key", hide_input=True)],
) -> None:
    """Store the URL of a service and your key for it in a file that only you can read."""
    with Client(url, key.strip()) as client:
        name = client.me()["name"]
        logins.keep(client.url, key.strip())
        typer.echo(f"logged in as {name} at {client.url}; stored in {logins.file()}")


@app.command()
def logout() -> None:
    """Delete the URL and the key that login stored."""
    logins.forget()


def _each(context: CommandContext, typed: list[str], ask: Callable[[str], Json]) -> None:
    """Call a method for each of the experiments, and print their new status."""
    seen = [ask(one) for one in context.ids(typed)]
    context.tell(seen, (f"{one['id']} {one['status']}" for one in seen))
