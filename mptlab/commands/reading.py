"""Commands that show experiments and their results."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer

from mptlab.commands.completion import runs_and_sweeps
from mptlab.commands.context import (
    SHORT_ID,
    CommandContext,
    ExperimentId,
    ExperimentIds,
    Sort,
    SweepId,
    cell,
    local_time,
    moment,
    order_by,
    print_side_by_side,
    short_ids,
    warn,
    with_context,
    write_csv,
)
from mptlab.commands.following import (
    comes_back,
    exit_unless_succeeded,
    follow,
    metric_lines,
    print_ended,
    print_warnings,
    result_lines,
)
from mptlab.curves import curves_together
from mptlab.errors import Json
from mptlab.experiments import first
from mptlab.progress import printable
from mptlab.specs import not_none
from mptlab.tables import comparison, data_note, for_people, with_error

GIB = 2**30

app = typer.Typer()

FIGURES = "scores, area, convergence, training, evolution, comparison; default: from the series"
Kind = Annotated[str | None, typer.Option(help=FIGURES)]
MAX_A_PAGE = 50
"""Maximum number of experiments on a page of a list: a request names as many sweeps."""
MAX_COMPARED = 20
"""Maximum number of experiments of one name that are compared."""
Limit = Annotated[int, typer.Option(help="maximum number of rows", min=1)]


@app.command("list")
@with_context
def list_experiments(
    context: CommandContext,
    name: Annotated[str | None, typer.Option(help="only with this name")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="only with this tag; repeatable")] = None,
    status: Annotated[
        list[str] | None, typer.Option(help="only with this status; repeatable")
    ] = None,
    where: Annotated[str | None, typer.Option(help="such as metrics.lml > -61 and tag = x")] = None,
    order_by: Annotated[
        str | None, typer.Option(help="such as metrics.lml desc, name, created")
    ] = None,
    lab: Annotated[bool, typer.Option("--lab", help="experiments shared with the lab")] = False,
    projects: Annotated[
        bool, typer.Option("--projects", help="experiments shared with your projects")
    ] = False,
    points: Annotated[
        bool, typer.Option("--points", help="each point of a sweep on a line of its own")
    ] = False,
    limit: Limit = 20,
) -> None:
    """Show your experiments, newest first. The points of a sweep are one line."""
    given = {"name": name, "tag": tag, "status": status, "filter": where, "order_by": order_by}
    filters: Json = {key: value for key, value in given.items() if value}
    if lab and projects:
        raise typer.BadParameter("--lab and --projects are two lists: give one of them")
    if lab or projects:
        filters["whose"] = "lab" if lab else "project"
    if context.as_json:
        experiments = first(context.client.experiments, limit, summary=True, **filters)
        return context.dump([run | {"created": moment(run)} for run in experiments])
    pages = {"limit": min(limit, MAX_A_PAGE), "summary": True, **filters}
    if points or order_by:
        rows = [_line(run) for run in islice(context.client.experiments(**pages), limit)]
    else:
        pairs = islice(context.client.folded(**pages), limit)
        rows = [_sweep_line(sweep, run) if sweep else _line(run) for run, sweep in pairs]
    whose = ["owner"] * (lab or projects) + ["project"] * projects
    columns = ("id", "name", "status", *whose, "result", "created")
    shown = [row | {"created": moment(row)} for row in rows]
    if sys.stdout.isatty():  # a program gets whole ids
        for row, short_id in zip(
            shown, short_ids([{"experiment_id": row["id"]} for row in rows]), strict=True
        ):
            row.update(short_id)
    context.show(shown, *columns)


def _line(run: Json) -> Json:
    """Return the columns of an experiment in a list."""
    return {**run, "name": run["title"], "result": _result(run)}


def _sweep_line(sweep: Json, newest: Json) -> Json:
    """Return the columns of a sweep in a list, with the time of its newest point, if it has one of
    its own."""
    counts = ", ".join(f"{count} {status}" for status, count in sweep["counts"].items() if count)
    result = f"{sweep['points']} points: mpt table {sweep['id'][:SHORT_ID]}"
    if best := sweep["best"]:
        value = with_error(best["value"], best["std_err"])
        place = f" at {best['at']}" if best.get("at") else ""
        result = f"best {best['label']} {value}{place} of {sweep['points']} points"
    created = newest.get("created_at", sweep["created_at"])
    return {**sweep, "status": counts, "result": result, "created_at": created}


@app.command()
@with_context
def show(context: CommandContext, experiment_id: ExperimentId) -> None:
    """Show an experiment's status, its results, and its metrics so far, each ± one standard error.
    Its warnings are printed on stderr."""
    experiment = context.client.get(context.id(experiment_id, newest=True))
    facts = (f"{what:10} {printable(cell(value))}" for what, value in _facts(experiment).items())
    context.tell(experiment, chain(facts, result_lines(experiment), metric_lines(experiment)))
    print_warnings(context, {experiment["id"]: experiment["title"]})


@app.command()
@with_context
def watch(context: CommandContext, experiment_ids: ExperimentIds) -> None:
    """Show progress until the experiments end, then their metrics. Exit status 3 unless all
    succeeded. Ctrl-C stops only the watching."""
    ids = context.ids(experiment_ids)
    ended = follow(context, ids)
    context.dump(ended) if context.as_json else print_ended(ended)
    print_warnings(context, {run["id"]: run["name"] or run["id"] for run in ended})
    exit_unless_succeeded(ended)


@app.command()
@with_context
def curves(
    context: CommandContext,
    experiment_id: ExperimentId,
    series: Annotated[str | None, typer.Option(help="only the series of this name")] = None,
    csv_: Annotated[Path | None, typer.Option("--csv", help="write a table of all points")] = None,
    plot: Annotated[Path | None, typer.Option(help="draw a figure: .pdf, .svg or .png")] = None,
    kind: Kind = None,
    output: Annotated[Path | None, typer.Option(help="write JSON to a file")] = None,
) -> None:
    """Print an experiment's curves as JSON, or write them as a table or a figure."""
    experiment = context.client.experiments.get(context.id(experiment_id, newest=True))
    points = experiment.curves(series)
    if csv_ is not None:
        write_csv(csv_, points.columns())
    if plot is not None:
        points.plot(kind, plot)
    if output is not None:
        output.write_text(json.dumps(points, indent=2) + "\n")
    if csv_ is plot is output is None:
        context.dump(points)


@app.command()
@with_context
def logs(
    context: CommandContext,
    experiment_id: ExperimentId,
    level: Annotated[
        str | None, typer.Option(help="only lines of this level: info, warning")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="also print new lines until the end")
    ] = False,
) -> None:
    """Print an experiment's log."""
    run_id = context.id(experiment_id, newest=True)
    with comes_back("logs -f", [run_id]):
        for line in (
            _followed(context, run_id, level) if follow else context.client.logs(run_id, level)
        ):
            typer.echo(json.dumps(line) if context.as_json else _log_line(line))


def _followed(context: CommandContext, experiment_id: str, level: str | None) -> Iterator[Json]:
    for event in context.client.events_of(experiment_id, kind=["log"]):
        if level in (None, event["data"]["level"]):
            yield {"at": event["at"], **event["data"]}


@app.command()
@with_context
def plot(
    context: CommandContext,
    words: Annotated[
        list[str],
        typer.Argument(
            help="experiments or one sweep: id, beginning of an id, or name; then the output file: "
            ".pdf, .svg or .png",
            metavar="EXPERIMENT|SWEEP... FILE",
            autocompletion=runs_and_sweeps,
        ),
    ],
    kind: Kind = None,
    y: Annotated[
        str | None,
        typer.Option(help='of a sweep: metric, such as lml, or its error, such as "mpt std_err"'),
    ] = None,
    x: Annotated[str | None, typer.Option(help="of a sweep: swept field on the x axis")] = None,
) -> None:
    """Draw an experiment's curves as one of the paper's figures, those of several in one figure, or
    a metric of a sweep against a swept field."""
    *runs, last = words
    if not runs:
        is_file = Path(last).suffix.lower() in (".pdf", ".svg", ".png")
        lacking = "an experiment or a sweep" if is_file else "an output file, too"
        example = f"mpt plot mine {last}" if is_file else f"mpt plot {last} FILE.pdf"
        raise typer.BadParameter(f"give {lacking}: {example}")
    file = Path(last)
    typed = runs[0]
    sweep = context.sweep_or_none(typed) if kind is None and len(runs) == 1 else None
    if sweep is not None:
        if not (x or y) and first(context.client.experiments, 1, name=typed):
            cure = "give --y, or --kind for the experiment"
            raise typer.BadParameter(f"{typed} is a sweep and an experiment: {cure}")
        sweep.plot(y, x, file)
    elif y or x:
        raise typer.BadParameter(f"--y and --x are for a sweep, and {typed} is not one")
    else:
        ids = [context.id(run, newest=True) for run in runs]
        experiments = [*map(context.client.experiments.get, ids)]
        titles = Counter(run["title"] for run in experiments)
        labels = [
            run["title"] if titles[run["title"]] == 1 else f"{run['title']} {run.id[:SHORT_ID]}"
            for run in experiments
        ]
        for run, name in zip(experiments, runs, strict=True):
            if (run.spec.get("evaluate") or {}).get("texts"):
                cure = f"mpt texts {name} shows them, mpt score FILE --model a,b --plot draws those"
                raise typer.BadParameter(f"{name} has scores of texts: {cure} of two models")
        curves = [run.curves() for run in experiments]
        curves_together(zip(labels, curves, strict=True)).plot(kind, file)
    context.tell(str(file), [str(file)])


@app.command()
@with_context
def compare(context: CommandContext, experiment_ids: ExperimentIds) -> None:
    """Show experiments side by side: the fields in which their specs differ, and their metrics ±
    one standard error. A name stands for all experiments of that name, the 20 newest if there are
    more."""
    ids = [one for typed in experiment_ids for one in _compared(context, typed)]
    experiments = context.client.get_many(dict.fromkeys(ids))
    rows = comparison(experiments)
    context.dump(rows) if context.as_json else print_side_by_side(for_people(rows))
    if not context.as_json and (note := data_note(experiments)):
        typer.echo(note)


def _compared(context: CommandContext, typed: str) -> list[str]:
    """Return the experiments that are typed, at most MAX_COMPARED; say if there are more."""
    ids = context.ids_named(typed, MAX_COMPARED + 1)
    if len(ids) > MAX_COMPARED:
        warn(f"the {MAX_COMPARED} newest of several experiments with the name {typed} are compared")
    return ids[:MAX_COMPARED]


@app.command()
@with_context
def table(
    context: CommandContext,
    sweep_id: SweepId,
    csv_: Annotated[Path | None, typer.Option("--csv", help="write all points to a file")] = None,
    sort: Sort = None,
) -> None:
    """Show a sweep's metrics, as means over seeds ± one standard error, with the best row
    marked."""
    sweep = context.sweep(sweep_id)
    if csv_ is None:
        context.show_sweep(sweep, sort)
        return
    rows = sweep.table(order_by(sort))
    columns = dict.fromkeys(column for row in rows for column in row)
    write_csv(csv_, {name: [row.get(name) for row in rows] for name in columns})


@app.command()
@with_context
def sweeps(context: CommandContext, limit: Limit = 20) -> None:
    """Show your sweeps, newest first."""
    newest = first(context.client.sweeps, limit)
    context.show([sweep | {"created": moment(sweep)} for sweep in newest],
               "id", "name", "status", "points", "created")  # fmt: skip


@app.command()
@with_context
def download(
    context: CommandContext,
    experiment_id: ExperimentId,
    names: Annotated[list[str] | None, typer.Argument(help="names of files; default: all")] = None,
    to: Annotated[Path, typer.Option("--to", "--output", "-o", help="output folder")] = Path(),
) -> None:
    """Write an experiment's files: weights, pictures."""
    written = context.client.download(context.id(experiment_id, newest=True), to, *names or [])
    context.tell(files := [str(file) for file in written], files or ["it has no files"])


@app.command()
@with_context
def datasets(context: CommandContext, limit: Limit = 50) -> None:
    """Show your uploads, newest first."""
    newest = first(context.client.datasets, limit)
    context.show(newest, "id", "name", "n", "dim", "bytes")


@app.command()
@with_context
def workers(context: CommandContext) -> None:
    """Show the live workers, with the memory that each run uses, of its GPU if it has one, and the
    families that some of them do not run."""
    live = context.client.workers()
    shown = live
    if not context.as_json:
        shown = [
            {
                **worker,
                **_memory_columns(worker),
                "drained": _drained(worker),
                "also_runs": ", ".join(sorted(_families(worker) - _families(*live))),
            }
            for worker in live
        ]
    of_gpu = ("gpu",) if any(worker["gpu"] for worker in live) else ()
    full = ("store_full",) if any(worker.get("store_full") for worker in live) else ()
    drained = ("drained",) if any(worker.get("drain") for worker in live) else ()
    hangs = ("looked_s",) if any(worker.get("hangs") for worker in live) else ()
    differ = ("also_runs",) if any(_families(worker) != _families(*live) for worker in live) else ()
    beside = *full, *drained, *hangs, *differ, "experiment_id", "silent_s"
    context.show(shown, "host", "queue", *of_gpu, "memory", "busy", *beside)


def _families(*workers: Json) -> set[str]:
    """Return the families that all of these workers run."""
    return set.intersection(*(set(worker.get("families", ())) for worker in workers))


def _drained(worker: Json) -> str | None:
    """Return who has drained a worker's machine, from when on and until when, and when its run is
    handed back."""
    if (drain := worker.get("drain")) is None:
        return None
    start = "" if drain["has_begun"] else f" from {local_time(drain['starts_at'])}"
    until = "" if drain["until"] is None else f" until {local_time(drain['until'])}"
    end = f", hands back at {local_time(drain['hand_back_at'])}" if worker["busy"] else ""
    return f"by {drain['drained_by']}{start}{until}{end}"


def _memory_columns(worker: Json) -> Json:
    """Return the number and name of a worker's GPU, and how its memory is used: the GPU's if it has
    one, else main memory."""
    if worker["gpu"] is None:
        columns, prefix = {}, "memory"
    else:
        number = "" if worker.get("gpu_number") is None else f"{worker['gpu_number']}: "
        columns, prefix = {"gpu": f"{number}{worker['gpu']}"}, "gpu_memory"
    sizes = (worker.get(f"{prefix}_{name}") for name in ("ours", "free", "total"))
    ours, free, total = ("?" if size is None else f"{size / GIB:.3g}" for size in sizes)
    return {**columns, "memory": f"{ours} GiB by its run, {free} of {total} free"}


@app.command()
@with_context
def queue(context: CommandContext) -> None:
    """Print your share of the server (like Slurm's sshare), planned drains of machines, your
    waiting experiments, and whose runs the workers have."""
    share = context.client.queue()
    drains = () if context.as_json else context.client.drains()
    planned = [drain for drain in drains if not drain["has_begun"]]
    context.tell(share, _queue_lines(share, planned))


def _queue_lines(queue: Json, planned: Sequence[Json]) -> Iterator[str]:
    columns = ("RawShares", "NormShares", "RawUsage", "EffectvUsage", "LevelFS", "FairShare")
    names = ("raw_shares", "norm_shares", "raw_usage", "effectv_usage", "level_fs", "fair_share")
    share = {
        name: "-" if value is None else f"{value:.6g}" for name, value in queue["share"].items()
    }
    yield " ".join(f"{column:>12}" for column in columns)
    yield " ".join(f"{share[name]:>12}" for name in names)
    limits = {name: queue[f"max_{name}"] for name in ("running", "submitted")}
    yield ", ".join(
        f"{name} {queue[name]}" + ("" if limit is None else f" of {limit}")
        for name, limit in limits.items()
    )
    if (hours := queue["max_gpu_hours_a_day"]) is not None:
        yield f"GPU-hours in the last 24 h: {queue['gpu_hours']:.3g} of {hours:g}"
    for project in queue.get("projects", ()):
        yield _project_line(project)
    for drain in planned:
        yield (
            f"{drain['host']} is drained from {local_time(drain['starts_at'])} on: runs that would "
            "not end before wait, or start on other machines"
        )
    for waiting in queue["items"]:
        start = waiting["queue"]["estimated_start"] or "unknown"
        promise = waiting["queue"].get("promise")
        promised = f"; {promise}" if promise else ""
        yield f"{waiting['id']}  {waiting['queue']['reason']}; starts: {start}{promised}"
    for slot in queue.get("slots", ()):
        yield printable(f"{slot['name']}: {', '.join(_turn(slot))}")


def _project_line(project: Json) -> str:
    """Return a project's share, its part of the usage, and its runs."""
    share, limit = project["share"], project["max_running"]
    running = f"running {project['running']}" + ("" if limit is None else f" of {limit}")
    hours = project["max_gpu_hours_a_day"]
    of_gpus = "" if hours is None else f", GPU-hours {project['gpu_hours']:.3g} of {hours:g}"
    parts = f"share {share['norm_shares']:.1%}, used {share['effectv_usage']:.1%}"
    return f"project {project['name']}: {parts}, {running}{of_gpus}"


def _turn(slot: Json) -> Iterator[str]:
    """Yield whose run a worker has and until when at least, and who may displace it."""
    if slot["owner"] is None:
        yield "no run"
        return
    project = f" in {slot['project']}" if slot.get("project") else ""
    yield f"{slot['owner']}'s {slot['title'] or 'run'}{project} since {local_time(slot['since'])}"
    if slot["displaced_by"]:
        yield f"until {local_time(slot['keeps_until'])} at least"
    if slot["expected_end"]:
        yield f"expected to end {local_time(slot['expected_end'])}"
    if slot["displaced_by"]:
        yield f"then it may give way to {' or '.join(slot['displaced_by'])}"
    if slot["gives_way_to"]:
        yield f"now it is asked to give way to {slot['gives_way_to']}"


def _log_line(line: Json) -> str:
    at = line["at"][:19].replace("T", " ")
    return f"{at} {line['level']:7} {printable(line['message'])}"


MAX_RESULTS = 2
"""Maximum number of results of an experiment in a list."""


def _result(experiment: Json) -> str:
    """Return the first results of an experiment with their names."""
    results = []
    for row in [row for row in experiment["summary"] if row["label"] is not None][:MAX_RESULTS]:
        number = with_error(row["value"], row["std_err"]) or "-"
        tokens = f" per {row['tokens']} tokens" if row["tokens"] else ""
        results.append(f"{row['title']} {number}{tokens}")
    return "; ".join(results)


def _facts(experiment: Json) -> Json:
    """Return the most important facts of an experiment, without empty fields."""
    names = ("id", "name", "tags", "note", "status", "owner", "sweep")
    facts = {name: experiment[name] for name in names} | {"project": experiment.get("project")}
    if experiment["name"] is None:
        facts["title"] = experiment["title"]
    model, data = experiment["spec"]["model"], experiment["spec"]["data"]
    sizes = not_none(**{name: model.get(name) for name in ("latent_dim", "checkpoint")})
    facts["model"] = " ".join([model["family"], *(f"{key}={sizes[key]}" for key in sizes)])
    source = not_none(**{name: data.get(name) for name in ("dataset", "file", "subset")})
    facts["data"] = " ".join([data.get("source", ""), *map(str, source.values())])
    for key in ("created_at", "started_at", "finished_at"):
        facts[key.removesuffix("_at")] = experiment[key]
    if progress := experiment["progress"]:
        facts["progress"] = f"{progress['done']} of {progress['total']} {progress['unit']}"
    if place := experiment["queue"]:
        facts["waits"] = place["reason"]
    if failure := experiment["failure"]:
        facts["failure"] = f"{failure['kind']}: {failure['message']}"
    return {key: value for key, value in facts.items() if value not in (None, [])}
