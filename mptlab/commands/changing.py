"""The commands that change what there is, and who one is."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mptlab import login as logins
from mptlab.api import Client
from mptlab.commands.asking import Asked, ExperimentIds, OptionalIds, asks
from mptlab.errors import Json

app = typer.Typer()


@app.command()
@asks
def cancel(
    asked: Asked,
    experiment_ids: OptionalIds = None,
    user: Annotated[str | None, typer.Option(help="all of this user's: for admins")] = None,
    status: Annotated[list[str] | None, typer.Option(help="all with this status")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="all with this tag")] = None,
    filter: Annotated[str | None, typer.Option(help="all that match, see docs/api.md")] = None,
) -> None:
    """Cancel experiments: these, or all unfinished ones that match every option."""
    given = {"owner": user, "status": status, "tag": tag, "filter": filter}
    filters = {name: value for name, value in given.items() if value}
    if bool(experiment_ids) == bool(filters):
        raise typer.BadParameter("give experiments, or options that select some: see --help")
    if experiment_ids:
        return _each(asked, experiment_ids, asked.client.cancel)
    found = asked.client.cancel_matching(**filters, whose="all" if user else "mine")
    if asked.as_json:
        return asked.dump(found)
    typer.echo(f"{found['cancelled']} cancelled, {found['ending']} running ones end soon")


@app.command()
@asks
def pause(asked: Asked, experiment_ids: ExperimentIds) -> None:
    """Set experiments aside; what runs saves a checkpoint first."""
    _each(asked, experiment_ids, asked.client.pause)


@app.command()
@asks
def resume(asked: Asked, experiment_ids: ExperimentIds) -> None:
    """Put paused experiments back in the queue."""
    _each(asked, experiment_ids, asked.client.resume)


@app.command()
@asks
def retry(asked: Asked, experiment_ids: ExperimentIds) -> None:
    """Queue experiments like some that failed or were cancelled, and print their ids."""
    _each(asked, experiment_ids, asked.client.retry)


@app.command()
@asks
def delete(asked: Asked, experiment_ids: ExperimentIds) -> None:
    """Delete experiments that do not run."""
    for one in asked.ids(experiment_ids):
        asked.client.delete(one)


@app.command()
@asks
def upload(
    asked: Asked,
    file: Annotated[
        Path,
        typer.Argument(help=".npy, .npz, .csv, .parquet, .txt or .jsonl",
                       exists=True, dir_okay=False, readable=True),
    ],
) -> None:  # fmt: skip
    """Upload a data set, and print its id."""
    made = asked.client.upload(file)
    asked.dump(made) if asked.as_json else typer.echo(made["id"])


@app.command()
def login(
    url: Annotated[str, typer.Option(help="of the service", prompt="URL")],
    key: Annotated[str, typer.Option(help="your API key", prompt="API key", hide_input=True)],
) -> None:
    """Keep the URL of a service and your key for it, in a file that you alone may read."""
    with Client(url, key.strip()) as client:
        name = client.me()["name"]
        logins.keep(client.url, key.strip())
        typer.echo(f"you are {name} at {client.url}; kept in {logins.file()}")


@app.command()
def logout() -> None:
    """Forget what login kept."""
    logins.forget()


def _each(asked: Asked, typed: list[str], ask: Callable[[str], Json]) -> None:
    """Ask the same of some experiments, and say how they stand then."""
    seen = [ask(one) for one in asked.ids(typed)]
    if asked.as_json:
        asked.dump(seen)
    else:
        for one in seen:
            typer.echo(f"{one['id']} {one['status']}")
