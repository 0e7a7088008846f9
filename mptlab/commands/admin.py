"""The commands `mpt admin`: users, projects, keys, the audit log, drained machines, retention."""

import re
from datetime import datetime, time, timedelta
from typing import Annotated, Any

import typer

from mptlab import serve as server
from mptlab.commands.context import CommandContext, local_time, with_context
from mptlab.experiments import first
from mptlab.specs import not_none

app = typer.Typer(
    no_args_is_help=True,
    help="Users, projects, keys, the audit log, drained machines, retention: for admins.",
)
user_app = typer.Typer(no_args_is_help=True, help="Users of the service.")
key_app = typer.Typer(no_args_is_help=True, help="API keys of users.")
app.add_typer(user_app, name="user")
app.add_typer(key_app, name="key")
project_app = typer.Typer(no_args_is_help=True, help="Projects: users with shares in common.")
app.add_typer(project_app, name="project")


LIMIT = "NUMBER|none"
LIMITS = ("max_running", "max_submitted", "max_gpu_hours_a_day", "max_bytes")
USER_COLUMNS = ("name", "role", "active", "shares", *LIMITS, "may_jump")
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
Name = Annotated[str, typer.Argument(help="the user's name")]


@user_app.command("add")
@with_context
def add_user(
    context: CommandContext,
    name: Name,
    role: Annotated[str, typer.Option(help="admin, member or viewer")] = "member",
) -> None:
    """Add a user, and print the first key. It is shown only once."""
    context.client.add_user(name, role)
    key = context.client.add_key(name)
    context.tell(key, [key["key"]])


@user_app.command("list")
@with_context
def list_users(context: CommandContext) -> None:
    """Show all users."""
    users = context.client.users()
    by_account = ("disabled_for", "oidc_subject")
    shown = [name for name in by_account if any(user.get(name) for user in users)]
    context.show(users, *USER_COLUMNS, *shown, "created_at")


@user_app.command("set")
@with_context
def change_user(
    context: CommandContext,
    name: Name,
    role: Annotated[str | None, typer.Option(help="admin, member or viewer")] = None,
    active: Annotated[
        bool | None,
        typer.Option("--active/--disabled", help="disabled: keys are refused, the queue is held"),
    ] = None,
    shares: Annotated[
        int | None, typer.Option(help="shares of slots, relative to other users")
    ] = None,
    max_running: Annotated[
        str | None, typer.Option(metavar=LIMIT, help="concurrent runs; 0: nothing starts")
    ] = None,
    max_submitted: Annotated[
        str | None, typer.Option(metavar=LIMIT, help="unfinished experiments; 0: none accepted")
    ] = None,
    max_gpu_hours: Annotated[
        str | None, typer.Option(metavar=LIMIT, help="GPU-hours in 24 hours; 0: no GPU runs")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(metavar=LIMIT, help="bytes in the store; 0: nothing accepted")
    ] = None,
    may_jump: Annotated[
        bool | None, typer.Option("--may-jump/--may-not-jump", help="allow priorities above 100")
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            metavar="SUB|none", help="`sub` of the account that signs the user in at the provider"
        ),
    ] = None,
) -> None:
    """Change a user's role, shares of slots or limits; disable or enable the user; link an account.

    A limit is a number, or "none" for the server's default limit.
    A disabled user's keys are refused and its queued experiments do not start; running ones
    continue: see "mpt cancel --user".
    """
    typed = (max_running, max_submitted, max_gpu_hours, max_bytes)
    limits = not_none(**dict(zip(LIMITS, typed, strict=True)))
    changes = not_none(role=role, active=active, shares=shares, may_jump=may_jump)
    changes |= {name: _limit(name, text) for name, text in limits.items()}
    if subject is not None:
        changes["oidc_subject"] = None if subject == "none" else subject
    if not changes:
        raise typer.BadParameter("nothing to set: see mpt admin user set --help")
    context.show([context.client.change_user(name, **changes)], *USER_COLUMNS)


PROJECT_COLUMNS = ("name", "open", "members", "shares", *LIMITS)
Project = Annotated[str, typer.Argument(help="the project's name")]
Members = Annotated[list[str] | None, typer.Option(help="a user who joins; repeatable")]
ProjectShares = Annotated[
    int | None, typer.Option(help="shares of slots, relative to users and other projects")
]
MaxRunning = Annotated[
    str | None, typer.Option(metavar=LIMIT, help="concurrent runs; 0: nothing starts")
]
MaxSubmitted = Annotated[
    str | None, typer.Option(metavar=LIMIT, help="unfinished experiments; 0: none accepted")
]
MaxGpuHours = Annotated[
    str | None, typer.Option(metavar=LIMIT, help="GPU-hours in 24 hours; 0: no GPU runs")
]
MaxBytes = Annotated[str | None, typer.Option(metavar=LIMIT, help="stored bytes")]


@project_app.command("add")
@with_context
def add_project(
    context: CommandContext,
    name: Project,
    member: Members = None,
    shares: ProjectShares = None,
    max_running: MaxRunning = None,
    max_submitted: MaxSubmitted = None,
    max_gpu_hours: MaxGpuHours = None,
    max_bytes: MaxBytes = None,
) -> None:
    """Add a project. Its members submit into it by "mpt submit --project NAME"."""
    how = _project_fields(shares, max_running, max_submitted, max_gpu_hours, max_bytes)
    project = context.client.add_project(name, members=member or [], **how)
    context.show([project], *PROJECT_COLUMNS)


@project_app.command("list")
@with_context
def list_projects(context: CommandContext) -> None:
    """Show all projects."""
    context.show(context.client.projects(), *PROJECT_COLUMNS, "created_at")


@project_app.command("set")
@with_context
def change_project(
    context: CommandContext,
    name: Project,
    member: Members = None,
    remove: Annotated[list[str] | None, typer.Option(help="a user who leaves; repeatable")] = None,
    shares: ProjectShares = None,
    max_running: MaxRunning = None,
    max_submitted: MaxSubmitted = None,
    max_gpu_hours: MaxGpuHours = None,
    max_bytes: MaxBytes = None,
    reopen: Annotated[bool, typer.Option("--reopen", help="accept experiments again")] = False,
) -> None:
    """Change a project's members, shares of slots or limits.

    A limit is a number, or "none" for no limit. What a member who leaves has queued in the project
    still runs.
    """
    changes = _project_fields(shares, max_running, max_submitted, max_gpu_hours, max_bytes)
    changes |= not_none(add_members=member, remove_members=remove, open=reopen or None)
    if not changes:
        raise typer.BadParameter("nothing to set: see mpt admin project set --help")
    context.show([context.client.change_project(name, **changes)], *PROJECT_COLUMNS)


@project_app.command("close")
@with_context
def close_project(context: CommandContext, name: Project) -> None:
    """Let a project accept no experiments. Those that it has still run."""
    context.show([context.client.change_project(name, open=False)], *PROJECT_COLUMNS)


def _project_fields(shares: int | None, *typed: str | None) -> dict[str, Any]:
    limits = not_none(**dict(zip(LIMITS, typed, strict=True)))
    return not_none(shares=shares) | {name: _limit(name, text) for name, text in limits.items()}


@key_app.command("add")
@with_context
def add_key(
    context: CommandContext,
    name: Name,
    label: Annotated[str | None, typer.Option(help="purpose of the key")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="read, submit, cancel, admin or metrics; repeatable; default: all of "
            "the role's scopes"
        ),
    ] = None,
    days: Annotated[float | None, typer.Option(help="days until it expires")] = None,
) -> None:
    """Create a key and print it. It is shown only once."""
    wanted = not_none(name=label, scopes=scope or None, lasts_days=days)
    key = context.client.add_key(name, **wanted)
    context.tell(key, [key["key"]])


@key_app.command("list")
@with_context
def list_keys(context: CommandContext, name: Name) -> None:
    """Show a user's keys: their names, their scopes, and when they were used."""
    columns = ("id", "name", "scopes", "created_at", "expires_at", "last_used_at", "revoked_at")
    context.show(context.client.keys(name), *columns)


@key_app.command("revoke")
@with_context
def revoke_key(
    context: CommandContext,
    name: Name,
    key_id: Annotated[str, typer.Argument(help="the id, mpt_<id>_…")],
) -> None:
    """Revoke a key; later requests with it are refused."""
    context.client.revoke_key(name, key_id)


@app.command()
@with_context
def audit(
    context: CommandContext,
    actor: Annotated[str | None, typer.Option(help="only actions of this user")] = None,
    object_id: Annotated[
        str | None, typer.Option("--object", help="only actions on this id or name")
    ] = None,
    limit: Annotated[int, typer.Option(help="maximum number of lines", min=1)] = 50,
) -> None:
    """Show who did what to which object, newest first."""
    filters = not_none(actor=actor, object_id=object_id)
    entries = first(context.client.audit, limit, **filters)
    context.show(entries, "at", "actor", "key_id", "action", "object_id", "details")


@app.command()
@with_context
def drain(
    context: CommandContext,
    host: Annotated[str, typer.Argument(help='the machine, as "mpt workers" shows it')],
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="when the drain begins; default: now")
    ] = None,
    hand_back: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="when remaining runs are handed back; default: at --at, else in an hour, or in "
            "half of a shorter drain",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="when the drain ends; default: at mpt admin undrain"),
    ] = None,
) -> None:
    """Empty a machine, for example for its maintenance: no run starts there.

    Its current runs go on until they end or are handed back. Those that are handed back save a
    checkpoint, return to the queue and continue on other machines.
    Before --at, runs start that are expected to end in time.
    TIME is a duration (0s, 45m, 3h, 1d), a time of day (18:00), also of a weekday ("Sat 08:00"),
    or a date ("2026-01-31 18:00"), in the time zone of this terminal. With --at, the other times
    are the next ones after it, and durations count from it. The command may be repeated with other
    times: a machine has one drain.
    """
    clock = datetime.now().astimezone()
    start = clock if at is None else _time("--at", at, clock)
    hand_back_at, until_at = (
        None if typed is None else _time(option, typed, start)
        for option, typed in (("--hand-back", hand_back), ("--until", until))
    )
    times = hand_back_at, until_at, None if at is None else start
    seconds = (None if time is None else (time - clock).total_seconds() for time in times)
    row = context.client.drain(host, *seconds)
    names = ("starts_at", "hand_back_at", "until")
    shown = row if context.as_json else row | {name: local_time(row[name]) for name in names}
    context.show([shown], "host", *names, "drained_by")


@app.command()
@with_context
def undrain(
    context: CommandContext, host: Annotated[str, typer.Argument(help="the drained machine")]
) -> None:
    """Let runs start on a machine again, or cancel its planned drain."""
    context.client.undrain(host)


@app.command()
@with_context
def usage(context: CommandContext) -> None:
    """Show each user's share and usage of the server, heaviest recent user first, then those of
    projects."""
    rows = [{**user, **user["share"]} for user in context.client.usage()]
    for project in context.client.projects_usage():
        name = f"project {project['name']}"
        rows.append({**project, **project["share"], "name": name, "kept_bytes": None})
    columns = ("raw_shares", "raw_usage", "effectv_usage", "level_fs", "fair_share")
    context.show(rows, "name", "running", "kept_bytes", *columns)


@app.command()
def apply_retention(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only show the files that would be freed")
    ] = False,
) -> None:
    """On the server: delete expired experiments and purge deleted ones now."""
    server.become("service.operations.retention", *(["--dry-run"] if dry_run else []))


def _limit(name: str, typed: str) -> float | None:
    """Return the typed number, or None for the word "none". Raises BadParameter."""
    if typed == "none":
        return None
    try:
        return float(typed) if name == "max_gpu_hours_a_day" else int(typed)
    except ValueError:
        option = "--" + name.removesuffix("_a_day").replace("_", "-")
        raise typer.BadParameter(f'{option} {typed}: give a number, or "none"') from None


def _time(option: str, typed: str, after: datetime) -> datetime:
    """Return a typed time: a duration from `after`, the next time of day or of a weekday after it,
    or a date. Raises BadParameter."""
    if (length := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", typed)) is not None:
        return after + timedelta(seconds=float(length[1]) * UNITS_S[length[2]])
    parts = re.fullmatch(r"(?:([a-z]{3,}) +)?(\d\d:\d\d)", typed.lower())
    try:
        if parts is None:
            at = datetime.fromisoformat(typed).astimezone()
        else:
            weekday = None if parts[1] is None else _weekday(parts[1])
            at = _next(time.fromisoformat(parts[2]), weekday, after)
    except ValueError:
        message = (
            f"{option} {typed}: give a duration such as 45m, 3h or 1d, or a time such as 18:00, "
            '"Sat 08:00" or "2026-01-31 18:00"'
        )
        raise typer.BadParameter(message) from None
    if at < after:
        is_later = after > datetime.now().astimezone()
        problem = "this is before --at" if is_later else "this time has passed"
        raise typer.BadParameter(f"{option} {typed}: {problem}")
    return at


def _weekday(name: str) -> int:
    """Return the number of a weekday, Monday is 0. Raises ValueError."""
    names = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    return [known.startswith(name) for known in names].index(True)


def _next(time_of_day: time, weekday: int | None, after: datetime) -> datetime:
    """Return the next such time in the time zone of this terminal, on any day or on a weekday."""
    days = (after.date() + timedelta(days=number) for number in range(9))
    times = (
        datetime.combine(day, time_of_day).astimezone()
        for day in days
        if weekday in (None, day.weekday())
    )
    return next(at for at in times if at >= after)
