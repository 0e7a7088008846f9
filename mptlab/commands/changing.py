"""Commands that change experiments, share them or hand them on, upload data, and log in."""

import sys
import time
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from mptlab.client import Client
from mptlab.commands.completion import runs_and_sweeps
from mptlab.commands.context import (
    CommandContext,
    ExperimentId,
    ExperimentIds,
    OptionalIds,
    with_context,
)
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
from mptlab.config import login_file, store_login
from mptlab.errors import Json
from mptlab.progress import printable

app = typer.Typer()

STOPPING_S = 10.0
"""Maximum seconds to wait until a run has stopped."""
POLL_S = 0.2


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
    filters = {name: value for name, value in given.items() if value}  # --filter "" selects nothing
    if bool(experiment_ids) == bool(filters):
        raise typer.BadParameter("name experiments, or select some with options: see --help")
    if experiment_ids:
        return _each(context, experiment_ids, context.client.cancel, until_not_running=True)
    counts = context.client.cancel_matching(**filters, whose="all" if user else "mine")
    message = f"{counts['cancelled']} cancelled, {counts['ending']} running will end soon"
    context.tell(counts, [message])


@app.command()
@with_context
def pause(context: CommandContext, experiment_ids: ExperimentIds) -> None:
    """Pause experiments; a running experiment saves a checkpoint first."""
    _each(context, experiment_ids, context.client.pause, until_not_running=True)


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
    experiments = [*map(context.client.get, context.ids(experiment_ids))]
    if not yes:
        _ask_to_delete(experiments)
    for experiment in experiments:
        context.client.delete(experiment)
        if not context.as_json:
            typer.echo(f"deleted {_named(experiment)}")
    if context.as_json:
        context.dump([{name: run[name] for name in ("id", "name")} for run in experiments])


@app.command()
@with_context
def undelete(context: CommandContext, experiment_ids: ExperimentIds) -> None:
    """Restore deleted experiments while their files still exist. Give complete ids."""
    _each(context, experiment_ids, context.client.undelete)


def _ask_to_delete(experiments: Sequence[Json]) -> None:
    """Raises Abort if the user answers no, and BadParameter if there is no terminal to ask."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("cannot ask for confirmation here: give --yes")
    for experiment in experiments:
        typer.echo(f"  {_named(experiment)} {experiment['status']}", err=True)
    noun = "experiment" if len(experiments) == 1 else "experiments"
    typer.confirm(f"Delete {len(experiments)} {noun}?", abort=True, err=True)


def _named(experiment: Json) -> str:
    return f"{experiment['id']} {printable(experiment['name'] or '')}".rstrip()


@app.command()
@with_context
def share(
    context: CommandContext,
    experiment_ids: ExperimentIds,
    project: Annotated[
        bool, typer.Option("--project", help="only the members of the project that each is in")
    ] = False,
) -> None:
    """Let the whole lab read experiments."""
    _change(context, experiment_ids, visibility="project" if project else "lab")


@app.command()
@with_context
def unshare(context: CommandContext, experiment_ids: ExperimentIds) -> None:
    """Make shared experiments private again."""
    _change(context, experiment_ids, visibility="private")


@app.command()
@with_context
def tag(
    context: CommandContext,
    experiment_id: ExperimentId,
    tags: Annotated[list[str], typer.Argument(help="tags")],
    remove: Annotated[bool, typer.Option("--remove", help="remove these tags")] = False,
) -> None:
    """Add tags to an experiment, or remove them."""
    experiment = context.client.get(context.id(experiment_id))
    others = [tag for tag in experiment["tags"] if tag not in tags]
    tagged = context.client.change(experiment["id"], tags=others if remove else [*others, *tags])
    context.tell(tagged, [f"{tagged['id']} {', '.join(tagged['tags']) or 'no tags'}"])


@app.command()
@with_context
def rename(
    context: CommandContext,
    experiment_id: ExperimentId,
    name: Annotated[str, typer.Argument(help="new name")],
) -> None:
    """Change the name of an experiment."""
    _change(context, [experiment_id], name=name)


@app.command()
@with_context
def note(
    context: CommandContext,
    experiment_id: ExperimentId,
    text: Annotated[str, typer.Argument(help="text; an empty one deletes the note")],
) -> None:
    """Write a note on an experiment, in place of an earlier one."""
    _change(context, [experiment_id], note=text or None)


@app.command()
@with_context
def bundle(
    context: CommandContext,
    experiment_id: ExperimentId,
    file: Annotated[Path | None, typer.Argument(help="default: NAME.zip or ID.zip")] = None,
) -> None:
    """Write a zip file with all data of an ended experiment, and how to compute it again."""
    experiment = context.client.get(context.id(experiment_id, newest=True))
    name = (experiment["name"] or experiment["id"]).replace("/", "-")
    written = context.client.bundle(experiment, file or Path(f"{name}.zip"))
    context.tell(str(written), [str(written)])


@app.command("open")
@with_context
def open_page(
    context: CommandContext,
    typed: Annotated[
        str | None, typer.Argument(help="experiment or sweep; default: the list",
                                   metavar="EXPERIMENT|SWEEP", autocompletion=runs_and_sweeps)
    ] = None,
) -> None:  # fmt: skip
    """Open a page in your browser, signed in."""
    page = "/"
    if typed is not None:
        sweep = context.sweep_or_none(typed)
        page = f"/sweeps/{sweep.id}" if sweep else f"/experiments/{context.id(typed, newest=True)}"
    sign_in, _, code = context.client.sign_in_url().partition("#")
    link = f"{sign_in}?next={quote(page)}#{code}"
    is_open = not context.as_json and webbrowser.open(link)
    context.tell(link, [f"opened {page}" if is_open else f"open {link} in a browser"])


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
    project: Annotated[
        str | None, typer.Option(metavar="NAME", help="project of yours whose members may use it")
    ] = None,
) -> None:  # fmt: skip
    """Upload a data set, and print its id. What was read of it is printed on standard error."""
    options = reading_options(index, header, sep, decimal, thousands, drop_non_numeric)
    dataset = context.client.upload(file, project=project, **options)
    warn_of_missing(dataset)
    context.tell(dataset, [dataset["id"]])


@app.command()
def login(
    url: Annotated[str, typer.Option(help="URL of the service", prompt="URL")],
    key: Annotated[str, typer.Option(help="your API key", prompt="API key", hide_input=True)],
) -> None:
    """Store the URL of a service and your key for it in a file that only you can read."""
    with Client(url, key.strip()) as client:
        name = client.me()["name"]
        store_login(client.url, key.strip())
        typer.echo(f"logged in as {name} at {client.url}; stored in {login_file()}")
        context = CommandContext(client, as_json=False)
        context.advise("mpt submit --data FILE.csv --watch, with --index COLUMN for its ids")
        context.advise("mpt presets spec table1 > spec.json; mpt submit spec.json --watch")


@app.command()
def logout() -> None:
    """Delete the URL and the key that login stored."""
    login_file().unlink(missing_ok=True)


def _each(
    context: CommandContext,
    typed: list[str],
    ask: Callable[[str], Json],
    until_not_running: bool = False,
) -> None:
    """Call a method for each of the experiments, and print their new status: with
    `until_not_running` the one after they have stopped running, for some seconds at most."""
    changed = [ask(experiment_id) for experiment_id in context.ids(typed)]
    deadline = time.monotonic() + STOPPING_S
    while until_not_running and time.monotonic() < deadline:
        running = [i for i, run in enumerate(changed) if run["status"] == "running"]
        if not running:
            break
        time.sleep(POLL_S)
        for i in running:
            changed[i] = context.client.get(changed[i]["id"])
    context.tell(changed, (f"{run['id']} {_status(run, until_not_running)}" for run in changed))


def _status(run: Json, is_stopping: bool) -> str:
    """Return a status to print; of a run that has not stopped yet, also that it will."""
    will_stop = is_stopping and run["status"] == "running"
    return f"{run['status']}, and stops soon" if will_stop else str(run["status"])


def _change(context: CommandContext, typed: list[str], **changes: Any) -> None:
    """Change experiments, and print what they are called now, and who may read them."""
    changed = [context.client.change(run, **changes) for run in context.ids(typed)]
    lines = (f"{run['id']} {run['name'] or ''} ({run['visibility']})" for run in changed)
    context.tell(changed, (" ".join(line.split()) for line in lines))
