"""The commands `mpt admin`: users, keys, the audit, the sweep."""

from enum import StrEnum
from itertools import islice
from typing import Annotated

import typer

from mptlab import serve as server
from mptlab.commands.context import CommandContext, with_context
from mptlab.errors import Json

app = typer.Typer(no_args_is_help=True, help="Users, keys, the audit, the sweep: for admins.")
user_app = typer.Typer(no_args_is_help=True, help="Who may use the service.")
key_app = typer.Typer(no_args_is_help=True, help="What users show to the service.")
app.add_typer(user_app, name="user")
app.add_typer(key_app, name="key")


class Role(StrEnum):
    """What a user may do."""

    admin = "admin"
    member = "member"
    viewer = "viewer"


class Scope(StrEnum):
    """What a key may do."""

    read = "read"
    submit = "submit"
    cancel = "cancel"
    admin = "admin"
    metrics = "metrics"


LIMIT = "NUMBER|none"
LIMITS = ("max_running", "max_submitted", "max_gpu_hours_a_day", "max_bytes")
USER_COLUMNS = ("name", "role", "active", "shares", *LIMITS, "may_jump")
Name = Annotated[str, typer.Argument(help="the user's name")]


@user_app.command("add")
@with_context
def add_user(
    context: CommandContext,
    name: Name,
    role: Annotated[Role, typer.Option(help="what the user may do")] = Role.member,
) -> None:
    """Add a user, and print a first key: it is shown this once."""
    context.client.add_user(name, role.value)
    _show_key(context, context.client.add_key(name))


@user_app.command("list")
@with_context
def list_users(context: CommandContext) -> None:
    """Show all users."""
    context.show(context.client.users(), *USER_COLUMNS, "created_at")


@user_app.command("set")
@with_context
def change_user(
    context: CommandContext,
    name: Name,
    role: Annotated[Role | None, typer.Option(help="another role")] = None,
    active: Annotated[
        bool | None,
        typer.Option("--active/--disabled", help="disabled: keys are refused, the queue is held"),
    ] = None,
    shares: Annotated[int | None, typer.Option(help="of slots, beside other users'")] = None,
    max_running: Annotated[
        str | None, typer.Option(metavar=LIMIT, help="running at once; 0: nothing starts")
    ] = None,
    max_submitted: Annotated[
        str | None, typer.Option(metavar=LIMIT, help="not ended yet; 0: nothing is accepted")
    ] = None,
    max_gpu_hours: Annotated[
        str | None, typer.Option(metavar=LIMIT, help="within 24 hours; 0: nothing starts on a GPU")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(metavar=LIMIT, help="kept in the store; 0: nothing is accepted")
    ] = None,
    may_jump: Annotated[
        bool | None, typer.Option("--may-jump/--may-not-jump", help="by priorities above 100")
    ] = None,
) -> None:
    """Change a user's role, shares of slots or limits; disable or enable the user.

    A limit is a number, or "none": the user has no limit of its own, and the server's counts.
    While a user is disabled, no key of the user serves and nothing queued starts; what runs goes
    on: see "mpt cancel --user".
    """
    plain = {"role": role and role.value, "active": active, "shares": shares, "may_jump": may_jump}
    typed = (max_running, max_submitted, max_gpu_hours, max_bytes)
    limits = _given(dict(zip(LIMITS, typed, strict=True)))
    changes = _given(plain) | {name: _limit(name, text) for name, text in limits.items()}
    if not changes:
        raise typer.BadParameter("nothing to set: see mpt admin user set --help")
    context.show([context.client.change_user(name, **changes)], *USER_COLUMNS)


@key_app.command("add")
@with_context
def add_key(
    context: CommandContext,
    name: Name,
    label: Annotated[str | None, typer.Option(help="what the key is for")] = None,
    scope: Annotated[
        list[Scope] | None, typer.Option(help="may be given again; all of the role's by default")
    ] = None,
    days: Annotated[float | None, typer.Option(help="for how long it serves")] = None,
) -> None:
    """Make a key, and print it: it is shown this once."""
    scopes = [one.value for one in scope] if scope else None
    wanted = {"name": label, "scopes": scopes, "lasts_days": days}
    _show_key(context, context.client.add_key(name, **_given(wanted)))


@key_app.command("list")
@with_context
def list_keys(context: CommandContext, name: Name) -> None:
    """Show a user's keys: what they are for, what they may, when they were used."""
    columns = ("id", "name", "scopes", "created_at", "expires_at", "last_used_at", "revoked_at")
    context.show(context.client.keys(name), *columns)


@key_app.command("revoke")
@with_context
def revoke_key(
    context: CommandContext,
    name: Name,
    key_id: Annotated[str, typer.Argument(help="the id, mpt_<id>_…")],
) -> None:
    """Revoke a key: it serves no request that comes after."""
    context.client.revoke_key(name, key_id)


@app.command()
@with_context
def audit(
    context: CommandContext,
    actor: Annotated[str | None, typer.Option(help="only what this user did")] = None,
    object_id: Annotated[
        str | None, typer.Option("--object", help="only about this id or name")
    ] = None,
    limit: Annotated[int, typer.Option(help="so many lines at most", min=1)] = 50,
) -> None:
    """Show who did what to which object, newest first."""
    filters = _given({"actor": actor, "object_id": object_id, "limit": min(limit, MAX_A_PAGE)})
    entries = list(islice(context.client.audit(**filters), limit))
    context.show(entries, "at", "actor", "key_id", "action", "object_id", "details")


@app.command()
@with_context
def usage(context: CommandContext) -> None:
    """Show how the users share the server, who has used it most of late first."""
    rows = [{**one, **one["share"]} for one in context.client.usage()]
    columns = ("raw_shares", "raw_usage", "effectv_usage", "level_fs", "fair_share")
    context.show(rows, "name", "running", "kept_bytes", *columns)


@app.command()
@with_context
def retention(context: CommandContext) -> None:
    """Show what the sweep would free by now: delete what is old, purge what was deleted."""
    found = context.client.retention()
    rows = [{"what": what, **one} for what in ("delete", "purge") for one in found[what]]
    context.show(rows, "what", "owner", "why", "count", "bytes")


@app.command()
def sweep(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only say what would be freed")
    ] = False,
) -> None:
    """On the server: delete what was kept for long enough, purge what was deleted, and say so."""
    server.become("service.operations.retention", *(["--dry-run"] if dry_run else []))


MAX_A_PAGE = 500


def _limit(name: str, typed: str) -> float | None:
    """Return the number that was typed, or None for the word "none". Raises BadParameter."""
    if typed == "none":
        return None
    try:
        return float(typed) if name == "max_gpu_hours_a_day" else int(typed)
    except ValueError:
        option = "--" + name.removesuffix("_a_day").replace("_", "-")
        raise typer.BadParameter(f'{option} {typed}: give a number, or "none"') from None


def _given(values: Json) -> Json:
    return {key: value for key, value in values.items() if value is not None}


def _show_key(context: CommandContext, made: Json) -> None:
    context.dump(made) if context.as_json else typer.echo(made["key"])
