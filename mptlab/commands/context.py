"""Parts of the commands that call the service: the options --url and --json, a client, the ids of
experiments as people type them, and tables."""

import csv
import functools
import inspect
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mptlab.client import Client
from mptlab.commands.completion import SUGGESTED, ids_and_names, sweeps_and_names
from mptlab.errors import Json, Refused
from mptlab.experiments import first
from mptlab.progress import printable
from mptlab.sweeps import Sweep, flat_row, rows_of
from mptlab.tables import BEHIND_BEST, for_people, heading, short_paths, sweep_for_people
from mptlab.uploads import reading_lines

PLAIN_WIDTH = 1000
"""Width that folds no line, used when a program reads the output."""

WHOLE_ID = re.compile(r"[0-9a-f]{32}")
PART_OF_ID = re.compile(r"[0-9a-f]+")
AFTER_ALL_DIGITS = "g"  # of hexadecimal numbers
SHORT_ID, WHOLE_LENGTH = 12, 32
"""Minimum and maximum number of digits of an id in a table."""
MAX_NAME = 200
MAX_CANDIDATES = 5
MAX_SWEEPS = 200
MAX_IN_CELL = 12
"""Number of the values of a list that a table shows."""

Url = Annotated[str | None, typer.Option("--url", help="URL of the service", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]


@dataclass
class CommandContext:
    """URL of the service that a command calls, and whether it prints JSON."""

    client: Client
    as_json: bool

    def show(self, items: Sequence[Json], *columns: str) -> None:
        """Print the service's response: as complete JSON, or these columns in a table."""
        if self.as_json:
            self.dump(items)
        else:
            print_table(columns, ([item.get(column) for column in columns] for item in items))

    def show_metrics(self, rows: Sequence[Json]) -> None:
        """Print the rows of a sweep's table or a comparison: complete as JSON, or a short table."""
        shown = rows if self.as_json else for_people(rows)
        self.show(shown, *dict.fromkeys(column for row in shown for column in row))

    def show_sweep(self, sweep: Sweep, order: str | None = None) -> Json:
        """Print a sweep's points as JSON, or its means over seeds as a table with its best row, in
        the order of a column. Return the service's table."""
        document = sweep.table_document(order_by(order))
        if self.as_json:
            self.dump([flat_row(row) for row in document["items"]])
            return document
        rows = [flat_row(row) for row in rows_of(document)]
        best = document["best"] and rows[document["best"]["row"]]
        shown = sweep_for_people(rows, best, (order or "").removeprefix("-"))
        for row, short_id in zip(shown, short_ids(rows), strict=True):
            row.update(short_id)
        columns = dict.fromkeys(column for row in shown for column in row)
        short = short_paths(document["fields"])
        chief = (document["chief_metric"], BEHIND_BEST, (order or "").removeprefix("-"))
        others = [name for name in document["metrics"] if name in columns and name not in chief]
        others.sort(key=lambda name: not name.startswith("mpt"))
        cells = ([row.get(column) for column in columns] for row in shown)
        print_table((short.get(column, column) for column in columns), cells, others)
        if any(row.get("mpt") is not None and row["mpt std_err"] is None for row in rows):
            warn(WITHOUT_ERROR)
        for i, note in enumerate(document["notes"]):
            typer.echo(f"* {note}" if best and i == 0 else f"  {note}")
        return document

    def sweep(self, typed: str, newest: bool = True) -> Sweep:
        """Return the caller's sweep with this id, this beginning of an id or this name. Raises
        BadParameter if several match, unless they have this name and `newest` is true: then return
        the newest, and say so."""
        sweep_id = self._sweep_id(typed, newest)
        if sweep_id is None:
            advice = _nearest(typed, self._newest_sweeps())
            if self._named(typed, 1):
                advice = f": it is an experiment, mpt show {typed} shows it"
            detail = f"you have no sweep {typed}{advice}"
            raise Refused({"detail": detail, "reason": "not_found"})
        return self.client.get_sweep(sweep_id)

    def sweep_or_none(self, typed: str) -> Sweep | None:
        """Return the caller's sweep as `sweep` does, or None if there is none."""
        sweep_id = self._sweep_id(typed, newest=True)
        try:
            return None if sweep_id is None else self.client.get_sweep(sweep_id)
        except Refused as refused:
            if refused.reason != "not_found":
                raise
            return None

    def _sweep_id(self, typed: str, newest: bool) -> str | None:
        if not _is_searched(typed):
            return typed or None
        sweeps = [
            sweep
            for sweep in self._newest_sweeps()
            if sweep["name"] == typed or sweep["id"].startswith(typed)
        ]
        return _one_of(sweeps, "sweeps", typed, newest)

    def _newest_sweeps(self) -> list[Json]:
        return first(self.client.sweeps, MAX_SWEEPS)

    def tell(self, value: Any, lines: Iterable[str]) -> None:
        """Print a value as JSON, or these lines."""
        if self.as_json:
            return self.dump(value)
        for line in lines:
            typer.echo(line)

    def advise(self, command: str) -> None:
        """Print the next sensible command, if a person reads it."""
        if not self.as_json and sys.stderr.isatty():
            typer.echo(f"next: {command}", err=True)

    def dump(self, value: Any) -> None:
        typer.echo(json.dumps(value, indent=2))

    def ids(self, typed: Iterable[str]) -> list[str]:
        return [self.id(word) for word in typed]

    def id(self, typed: str, newest: bool = False) -> str:
        """Return the id of the caller's experiment with this id, this beginning of an id or this
        name, or of a shared one by OWNER/NAME. Raises BadParameter if several match, unless
        they have this name and `newest` is true: then return the newest, and say so."""
        if not _is_searched(typed):
            return typed
        begun = []
        if PART_OF_ID.fullmatch(typed):
            between = f'id >= "{typed}" and id < "{typed}{AFTER_ALL_DIGITS}"'
            begun = first(self.client.experiments, MAX_CANDIDATES, filter=between)
        named = self._named(typed, MAX_CANDIDATES)
        experiments = {experiment["id"]: experiment for experiment in (*begun, *named)}.values()
        newest_first = sorted(experiments, key=lambda run: str(run["created_at"]), reverse=True)
        experiment_id = _one_of(newest_first, "experiments", typed, newest)
        if experiment_id is None:
            self._refuse_unknown(typed)
        return experiment_id

    def ids_named(self, typed: str, most: int) -> list[str]:
        """Return the ids of the newest experiments of this name, the newest first, or of the points
        of a sweep, or what `id` returns if there are not several."""
        if not _is_searched(typed):
            return [typed]
        ids = [experiment["id"] for experiment in self._named(typed, most)]
        if not ids and (sweep := self.sweep_or_none(typed)):
            ids = [point["experiment_id"] for point in sweep.table()][:most]
        return ids if len(ids) > 1 else [self.id(typed)]

    def _named(self, typed: str, most: int) -> list[Json]:
        """Return the caller's experiments of this name, and shared ones of OWNER/NAME."""
        queries: list[Json] = [{"name": typed}]
        owner, _, name = typed.partition("/")
        if owner and name:
            shared = {"owner": owner, "name": name}
            queries += [{**shared, "whose": "lab"}, {**shared, "whose": "project"}]
        pages = [first(self.client.experiments, most, **query) for query in queries]
        return [*chain(*pages)][:most]

    def _refuse_unknown(self, typed: str) -> NoReturn:
        """Raises Refused with the command for a sweep or a preset of this name, or with the most
        similar name of an experiment."""
        if self._sweep_id(typed, newest=True):
            advice = f": it is a sweep; mpt table {typed} shows the ids of its runs"
        elif any(preset["name"] == typed for preset in self.client.presets()):
            advice = f": it is a preset, mpt reproduce {typed} runs it and draws its figures"
        else:
            advice = _nearest(typed, first(self.client.experiments, SUGGESTED))
        detail = f"you have no experiment {typed}{advice}"
        raise Refused({"detail": detail, "reason": "not_found"})


def _is_searched(typed: str) -> bool:
    """Return whether a word may be a name or the beginning of an id."""
    return 0 < len(typed) <= MAX_NAME and WHOLE_ID.fullmatch(typed) is None


def _nearest(typed: str, documents: Iterable[Json]) -> str:
    """Return advice with the most similar name of these documents, if there is one."""
    names = [document["name"] for document in documents if document["name"]]
    near = get_close_matches(typed, names, n=1)
    return f": did you mean {near[0]}?" if near else ""


def _one_of(documents: Sequence[Json], what: str, typed: str, newest: bool) -> str | None:
    """Return the id of the first of these documents, which are the newest first, or None. Raises
    BadParameter if there are several, unless `newest` is true and all have the typed name."""
    if len(documents) > 1:
        if not newest or any(document["id"].startswith(typed) for document in documents):
            each = ", ".join(f"{doc['id']} ({doc['status']}, {moment(doc)})" for doc in documents)
            message = f"{typed} matches several {what}, give an id; newest first: {each}"
            raise typer.BadParameter(message)
        used, *others = (f"{document['id']} ({moment(document)})" for document in documents)
        warn(f"{typed} matches several {what}: the newest is used, {used}, not {', '.join(others)}")
    return documents[0]["id"] if documents else None


def order_by(sort: str | None) -> str | None:
    """Return a column as it is typed, with a minus for the highest value first, in the form of the
    service."""
    return sort and f"{sort.removeprefix('-')} {'desc' if sort.startswith('-') else 'asc'}"


WITHOUT_ERROR = "a score without ± has no error: that needs 12 masks of each size, or three seeds"


def choice(row: Json, fields: Iterable[str]) -> str:
    """Return the values of the swept fields in a row of a sweep's table."""
    return ", ".join(f"{name}={cell(row[name])}" for name in fields if name in row)


def short_ids(rows: Sequence[Json]) -> list[Json]:
    """Return the beginning of the id of each row's experiment, as long as it needs to be to tell
    the rows apart. Empty for means over several experiments."""
    ids = {row["experiment_id"] for row in rows if "experiment_id" in row}
    lengths = range(SHORT_ID, WHOLE_LENGTH)
    is_enough = (n for n in lengths if len({whole[:n] for whole in ids}) == len(ids))
    length = next(is_enough, WHOLE_LENGTH)
    return [{"id": row["experiment_id"][:length]} if "experiment_id" in row else {} for row in rows]


@contextmanager
def flags_named(flags: Mapping[str, str]) -> Iterator[None]:
    """Let messages name the flags by which fields were typed, in place of their JSON pointers."""

    def named(message: str) -> str:
        for pointer, flag in flags.items():
            message = re.sub(rf"(?<!\S){re.escape(pointer)}(/\S*)?: ", f"{flag}: ", message)
        return message

    try:
        yield
    except Refused as refused:
        document = {**refused.document, "detail": named(str(refused))}
        raise Refused(document, refused.status) from None
    except ValueError as error:
        raise ValueError(named(str(error))) from None


def with_context(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command that calls the service: it gets --url and --json, and a CommandContext."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    options = [
        inspect.Parameter("url", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Url),
        inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False,
                          annotation=AsJson),
    ]  # fmt: skip

    @functools.wraps(function)
    def command(*, url: str | None, as_json: bool, **arguments: Any) -> None:
        with connected(url) as client:
            function(CommandContext(client, as_json), **arguments)

    typed = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    command.__signature__ = inspect.Signature([*typed, *options])  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in (*typed, *options)}
    return command


def connected(url: str | None) -> Client:
    """Return the client of a command; it reports on stderr when the service does not answer."""
    client = Client(url, on_outage=warn)
    client.on_upload = lambda *uploaded: [*map(warn, reading_lines(*uploaded))]
    return client


SweepId = Annotated[
    str,
    typer.Argument(help="sweep: id, beginning of an id, or name", autocompletion=sweeps_and_names),
]
_HELP = "experiment: id, beginning of an id, name, or OWNER/NAME if shared"
ExperimentId = Annotated[str, typer.Argument(help=_HELP, autocompletion=ids_and_names)]
Sort = Annotated[
    str | None,
    typer.Option(help="column of the table: a swept field or a metric; -lml: the highest first"),
]
OptionalIds = Annotated[list[str] | None, typer.Argument(help=_HELP, autocompletion=ids_and_names)]
ExperimentIds = Annotated[list[str], typer.Argument(help=_HELP, autocompletion=ids_and_names)]


def print_table(
    headers: Iterable[str], rows: Iterable[Iterable[Any]], less: Sequence[str] = ()
) -> None:
    """Print a table as wide as the terminal, or without folded lines for a program. As many of the
    columns `less` are left out as do not fit, the first of them first."""
    names, cells = [*headers], [[*row] for row in rows]
    console = Console()
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    wide = console.options.update(max_width=PLAIN_WIDTH)
    omitted: list[str] = []
    while True:
        kept = [i for i, name in enumerate(names) if name not in omitted]
        table = _table([names[i] for i in kept], ([row[i] for i in kept] for row in cells))
        fits = console.measure(table, options=wide).maximum <= console.width
        if fits or len(omitted) == len(less):
            break
        omitted.append(less[len(omitted)])
    console.print(table)
    if omitted:
        typer.echo(f"without {', '.join(omitted)}: a wider terminal shows them, and --csv")


def _table(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    for name in map(heading, names):
        header = name if "." in name else name.replace("_", " ")  # spaces allow folding
        table.add_column(Text(header), overflow="fold", no_wrap=name == "id")
    for row in rows:
        table.add_row(*(Text(printable(cell(value))) for value in row))
    return table


def print_side_by_side(rows: Sequence[Json]) -> None:
    """Print experiments as columns and their fields as rows, which fits more terminals."""
    names = dict.fromkeys(name for row in rows for name in row)
    heads, *fields = ([name, *(row.get(name) for row in rows)] for name in names)
    print_table(map(str, heads), ([heading(str(name)), *values] for name, *values in fields))


def write_csv(file: Path, columns: dict[str, list[Any]]) -> None:
    """Write columns to a file, or to stdout if its name is a minus."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    if str(file) == "-":
        typer.echo(text.getvalue(), nl=False)
    else:
        file.write_text(text.getvalue(), encoding="utf-8")
        typer.echo(file)


def cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.7g}"
        case list():
            more = [f"… ({len(value)} values)"] if len(value) > MAX_IN_CELL else []
            return ",".join([*map(cell, value[:MAX_IN_CELL]), *more])
        case dict():
            return " ".join(f"{key}={cell(part)}" for key, part in value.items())
    return str(value)


def moment(document: Json) -> str:
    """Return the time at which an experiment or a sweep was created, to the minute."""
    return f"{document['created_at'][:16].replace('T', ' ')}"


def local_time(at: str | None) -> str | None:
    """Return a time of the service to the minute, in the time zone of this terminal."""
    return at and f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M}"


def warn(message: str) -> None:
    """Print a line on stderr."""
    typer.echo(f"mpt: {printable(message)}", err=True)
