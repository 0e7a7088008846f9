"""Commands that submit experiments."""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from mptlab.commands.completion import MODELS, spec_fields
from mptlab.commands.context import (
    CommandContext,
    Sort,
    SweepId,
    cell,
    choice,
    flags_named,
    warn,
    with_context,
)
from mptlab.commands.following import (
    MAX_NAMED,
    comes_back,
    exit_unless_succeeded,
    follow,
    print_ended,
    print_warnings,
)
from mptlab.commands.own_data import (
    Array,
    Columns,
    Data,
    Decimal,
    DropNonNumeric,
    Header,
    Index,
    LatentDim,
    Model,
    Sep,
    Text,
    Thousands,
    names_of,
    reading_options,
    refuse_table_of_texts,
    spec_of_data,
)
from mptlab.errors import Json, Refused
from mptlab.specs import changed, kind_of_data, not_none, parse_spec, parse_value, quick
from mptlab.sweeps import Sweep, run_of

MAX_VALUES = 10_000

app = typer.Typer()

_SPEC = "spec file (JSON or YAML); - reads JSON from stdin"
SpecFile = Annotated[Path, typer.Argument(help=_SPEC)]
OptionalSpec = Annotated[Path | None, typer.Argument(help=f"{_SPEC}; none with --data")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="change a field: data.n=500; repeatable", autocompletion=spec_fields
    ),
]
Name = Annotated[str | None, typer.Option(help="name, to find it later")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="tag, to find it later; repeatable")]
Share = Annotated[bool, typer.Option("--share", help="let the whole lab read it")]
Watch = Annotated[bool, typer.Option("--watch", "--wait", help="show progress to the end")]
Over = Annotated[
    list[str],
    typer.Option(
        help="field and values: model.latent_dim=1..12, data.n=100,500; repeatable",
        autocompletion=spec_fields,
    ),
]
InProject = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="project of yours that it is charged to; its members read it"
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="compute even if computed before")]


@app.command()
@with_context
def submit(
    context: CommandContext,
    spec: OptionalSpec = None,
    data: Data = None,
    text: Text = None,
    model: Model = "ppca",
    latent_dim: LatentDim = None,
    columns: Columns = None,
    index: Index = None,
    array: Array = None,
    header: Header = None,
    sep: Sep = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    drop_non_numeric: DropNonNumeric = False,
    set_: Changes = None,
    name: Name = None,
    tag: Tags = None,
    share: Share = False,
    project: InProject = None,
    no_cache: NoCache = False,
    watch: Watch = False,
    quick_: Annotated[
        bool, typer.Option("--quick", help="a quick look now, and the time of the whole run")
    ] = False,
) -> None:
    """Queue an experiment, and print its id.

    Score your own numbers without a spec: mpt submit --data mine.csv --latent-dim 2..10

    Score other rows with a model that was fitted: mpt submit --data new.csv --model mine"""
    beside = beside_of(name, tag, share, no_cache, project)
    if text is not None:
        refuse_table_of_texts(text, model)
        if data is not None:
            raise typer.BadParameter("--data and --text are one option: give one of them")
        data = text
    if (spec is None) == (data is None):
        example = "for a spec to begin with: mpt presets spec table1 > spec.json"
        raise typer.BadParameter(f"give a spec file, or your numbers: --data mine.csv; {example}")
    grid: Json = {}
    fitted = None
    options = reading_options(index, header, sep, decimal, thousands, drop_non_numeric)
    if data is None:
        assert spec is not None
        if options or columns or array or latent_dim:
            cure = "upload its file by mpt upload FILE with them, and give the id, or set fields by"
            raise typer.BadParameter(f"options of --data are not for a spec: {cure} --set")
        sent = _spec(spec, set_)
    else:
        dims = None if latent_dim is None else _values(latent_dim)
        names = names_of(columns)
        sent, grid, fitted = spec_of_data(context, data, model, dims, names, array, options)
        sent = changed(sent, _changes(set_))
        beside = {"name": Path(data).stem, **beside}
    with flags_named({**(OF_DATA if data else {}), **_flags(set_)}):
        if quick_:
            _tell_whole(context, sent)
            sent, watch = quick(sent), True
        if grid:
            return _queue_sweep(context, sent, grid, beside, watch)
        experiment = context.client.submit(sent, **beside)
    _warn_if_blocked(experiment)
    (seen,) = followed(context, [experiment], watch)
    if context.as_json:
        context.dump(seen)
    elif fitted is not None and fitted["spec"]["model"]["family"] in MODELS:
        warn(f"the log-likelihood of each row: mpt rows {seen['id']}")
    if watch:
        exit_unless_succeeded([seen])


@app.command()
@with_context
def validate(context: CommandContext, spec: SpecFile, set_: Changes = None) -> None:
    """Check a spec and show its estimates; nothing is queued."""
    with flags_named(_flags(set_)):
        estimate = context.client.validate(_spec(spec, set_))
    runtime = estimate["runtime"]
    lines = {
        "masks": estimate["masks"],
        "points": estimate.get("points"),
        "memory": f"{estimate['memory_bytes'] / 2**20:.0f} MiB",
        "runtime": f"about {runtime['median_s']:.0f} s" if runtime else "unknown",
        "would wait": estimate["queue_reason"],
        "computed before": estimate["cached_from"],
    }
    facts = (f"{what:16} {cell(value)}" for what, value in lines.items())
    context.tell(estimate, ["the spec is valid", *facts])


@app.command()
@with_context
def sweep(
    context: CommandContext,
    spec: SpecFile,
    over: Over,
    set_: Changes = None,
    name: Name = None,
    tag: Tags = None,
    share: Share = False,
    project: InProject = None,
    no_cache: NoCache = False,
    concurrency: Annotated[int | None, typer.Option(help="maximum concurrent runs")] = None,
    watch: Watch = False,
    sort: Sort = None,
) -> None:
    """Queue an experiment for each combination of values of some fields, and print the sweep's id.
    With --watch, also print its table at the end."""
    if sort is not None and not watch:
        raise typer.BadParameter("--sort orders the table of --watch: give both, or see mpt table")
    pairs = [*map(_pair, over)]
    grid = {path: _swept(path, text) for path, text in pairs}
    if len(grid) < len(pairs):
        raise typer.BadParameter("--over has a field twice: give all its values at once, as 1,2,5")
    beside = beside_of(name, tag, share, no_cache, project) | not_none(concurrency=concurrency)
    with flags_named(_flags(set_, over)):
        _queue_sweep(context, _spec(spec, set_), grid, beside, watch, sort)


@app.command()
@with_context
def extend(
    context: CommandContext,
    sweep_id: SweepId,
    over: Over,
    no_cache: NoCache = False,
    watch: Watch = False,
    sort: Sort = None,
) -> None:
    """Add points to a sweep: each combination of values of some fields. With --watch, also print
    its table at the end."""
    grid = {path: _swept(path, text) for path, text in map(_pair, over)}
    extended = context.sweep(sweep_id, newest=False)
    how: Json = {"cache": False} if no_cache else {}
    known = [] if no_cache else _known_values(extended, grid)
    if known:
        warn(f"the sweep already has {', '.join(grid)} = {', '.join(map(cell, known))}")
    added = {path: [one for one in values if one not in known] for path, values in grid.items()}
    with flags_named(_flags(None, over)):
        if all(added.values()):
            extended.add(added, **how)
    _follow_sweep(context, extended, grid, watch, sort)


def _known_values(sweep: Sweep, grid: Json) -> list[Any]:
    """Return the values of a grid that points of the sweep have already. Empty if several fields
    are swept: then a point is a combination of values. Empty, too, if its table is too large."""
    try:
        document = sweep.table_document()
    except Refused:
        return []
    if len(grid) > 1 or document["fields"] != [*grid]:
        return []
    (path,) = grid
    known = [row["fields"][path] for row in document["items"]]
    return [value for value in grid[path] if value in known]


def _queue_sweep(
    context: CommandContext,
    spec: Json,
    grid: Json,
    beside: Json,
    watch: bool,
    sort: str | None = None,
) -> None:
    """Queue a sweep and print its id or, if requested, wait for it and print its table."""
    _follow_sweep(context, context.client.sweep(spec, grid, **beside), grid, watch, sort)


def _follow_sweep(
    context: CommandContext, sweep: Sweep, grid: Json, watch: bool, sort: str | None
) -> None:
    if not watch:
        context.dump(sweep.get()) if context.as_json else typer.echo(sweep.id)
        context.advise(f"mpt table {sweep.id}")
        return
    typer.echo(sweep.id, err=True)
    with comes_back("table", [sweep.id]):
        ended = sweep.wait(check=False)
    table = context.show_sweep(sweep, sort)
    print_warnings(context, {row["experiment_id"]: choice(row, grid) for row in sweep.table()})
    context.advise(f"mpt plot {sweep.id} FILE.pdf")
    if table["best"] and ended["spec"]["data"].get("source") == "upload":
        best = run_of(table, table["best"]["row"])
        scores = f"mpt submit --data NEW.csv --model {best}"
        context.advise(f"{scores}, with --index as before, which scores other rows")
    exit_unless_succeeded([ended])


def followed(context: CommandContext, queued: list[Json], watch: bool) -> list[Json]:
    """Print the ids of queued experiments and, if requested, wait until they end."""
    ids = [experiment["id"] for experiment in queued]
    if watch or not context.as_json:
        typer.echo("\n".join(ids), err=context.as_json)
    if not watch:
        context.advise(f"mpt watch {' '.join(ids[:MAX_NAMED])}")
        return queued
    ended = follow(context, ids)
    if not context.as_json:
        print_ended(ended)
        print_warnings(context, {run["id"]: run["name"] or run["id"] for run in ended})
    return ended


def _tell_whole(context: CommandContext, spec: Json) -> None:
    """Print on stderr how long the whole experiment takes after a quick look."""
    runtime = context.client.validate(spec)["runtime"]
    takes = f"about {runtime['median_s']:.0f} s" if runtime else "an unknown time"
    warn(f"a quick look with few masks and one seed; without --quick a run takes {takes}")


def _warn_if_blocked(experiment: Json) -> None:
    """Print why an experiment waits, if it is for more than its turn."""
    place = experiment.get("queue") or {}
    if place.get("blocked"):
        warn(f"it waits: {place['reason']}")


def beside_of(
    name: str | None, tags: list[str] | None, share: bool, no_cache: bool, project: str | None
) -> Json:
    """Return the given options other than the spec."""
    visibility, cache = "lab" if share else None, False if no_cache else None
    beside = {"name": name, "tags": tags or None, "visibility": visibility, "project": project}
    return not_none(**beside, cache=cache)


_NUMBERS = "mpt submit --data {file} --latent-dim 2..10 fits and scores PPCA"
_WITH_DATA = {
    "table": f"{_NUMBERS}; of texts, mpt score {{file}} --column COLUMN --checkpoint NAME",
    "array": _NUMBERS,
    "texts": "mpt submit --text {file} --checkpoint NAME scores all texts, mpt score {file} "
    "--checkpoint NAME each of them",
    "spreadsheet": "save it as .csv, then mpt submit --data FILE.csv --latent-dim 2..10",
}
"""Commands that use a data file, by its kind."""


def _spec(file: Path, changes: list[str] | None) -> Json:
    is_input = str(file) == "-"
    if kind := kind_of_data(file):
        message = f"{file} is data, not a spec: {_WITH_DATA[kind].format(file=file)}"
        raise typer.BadParameter(message)
    if not (is_input or file.exists()):
        message = f"file not found: {file}; to run a preset: mpt presets run NAME"
        raise typer.BadParameter(message)
    text = sys.stdin.read() if is_input else file.read_text(encoding="utf-8")
    spec = parse_spec(text, "standard input" if is_input else str(file))
    return changed(spec, _changes(changes))


OF_DATA = {
    "/spec/data/columns": "--columns",
    "/spec/data/array": "--array",
    "/spec/data/dataset": "--data",
    "/spec/model/latent_dim": "--latent-dim",
    "/grid/model.latent_dim": "--latent-dim",
    "/grid/model.family": "--model",
    "/spec/model/checkpoint": "--checkpoint",
}
"""Flags of data by the fields that they set."""


def _flags(changes: Iterable[str] | None, over: Iterable[str] = ()) -> dict[str, str]:
    """Return the typed flags by the fields that they set."""
    set_ = {
        f"/spec/{path.replace('.', '/')}": f"--set {path}" for path, _ in map(_pair, changes or ())
    }
    return {**set_, **{f"/grid/{path}": f"--over {path}" for path, _ in map(_pair, over)}}


def _changes(typed: list[str] | None) -> Json:
    return {path: parse_value(value) for path, value in map(_pair, typed or [])}


def _pair(text: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    if not (path and equals):
        raise typer.BadParameter(f"{text} is not FIELD=VALUE: write data.n=500")
    return path, value


def _swept(path: str, text: str) -> list[Any]:
    """Return the values of a swept field; of `seeds`, 1,2 means two points of one seed each."""
    values = _values(text)
    is_seeds = path == "seeds" and all(isinstance(value, int) for value in values)
    return [[value] for value in values] if is_seeds else values


def _values(text: str) -> list[Any]:
    """Return the values of a swept field: `1..12`, `[…]` as JSON, or a comma-separated list."""
    if between := re.fullmatch(r"(-?\d+)\.\.(-?\d+)", text):
        first, last = map(int, between.groups())
        if last - first >= MAX_VALUES:
            raise typer.BadParameter(f"{text} is more than {MAX_VALUES} values")
        if last < first:
            raise typer.BadParameter(f"{text} has no values: write {last}..{first}")
        return list(range(first, last + 1))
    if between := re.fullmatch(r"(\d+)-(\d+)", text):
        raise typer.BadParameter(f"{text} is not a range: write {between[1]}..{between[2]}")
    if text.startswith("["):
        try:
            listed = json.loads(f"[{text}]")
        except ValueError:
            raise typer.BadParameter(f"{text} is not valid JSON") from None
        return list(listed[0] if len(listed) == 1 else listed)
    return [parse_value(value) for value in text.split(",")]
