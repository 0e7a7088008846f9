"""Commands that describe experiments, share them, or hand them on."""

import webbrowser
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from mptlab.commands.context import CommandContext, ExperimentId, ExperimentIds, with_context

app = typer.Typer()


@app.command()
@with_context
def share(context: CommandContext, experiment_ids: ExperimentIds) -> None:
    """Let the whole lab read experiments."""
    _change(context, experiment_ids, visibility="lab")


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
    found = context.client.get(context.id(experiment_id))
    others = [one for one in found["tags"] if one not in tags]
    made = context.client.change(found["id"], tags=others if remove else [*others, *tags])
    context.tell(made, [f"{made['id']} {', '.join(made['tags']) or 'no tags'}"])


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
    found = context.client.get(context.id(experiment_id, newest=True))
    name = (found["name"] or found["id"]).replace("/", "-")
    written = context.client.bundle(found, file or Path(f"{name}.zip"))
    context.tell(str(written), [str(written)])


@app.command("open")
@with_context
def open_page(
    context: CommandContext,
    typed: Annotated[
        str | None, typer.Argument(help="experiment or sweep; default: the list",
                                   metavar="EXPERIMENT|SWEEP")
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


def _change(context: CommandContext, typed: list[str], **changes: Any) -> None:
    """Change experiments, and print what they are called now, and who may read them."""
    made = [context.client.change(one, **changes) for one in context.ids(typed)]
    lines = (f"{one['id']} {one['name'] or ''} ({one['visibility']})" for one in made)
    context.tell(made, (" ".join(line.split()) for line in lines))
