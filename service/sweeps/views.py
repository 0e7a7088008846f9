"""Convert rows of sweeps to response models."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import Row

from mptcore.specs import Problem
from mptcore.specs.stored import in_present_form
from service.db.engine import moment
from service.experiments.schemas import Progress
from service.experiments.titles import sweep_title, value_at
from service.experiments.views import failure_out
from service.records.means import mean_of
from service.records.spreadsheets import csv_text
from service.refusals import ApiError, invalid
from service.sweeps.best import SEEDS, chief_metric, conclusion, varying
from service.sweeps.models import Sweep
from service.sweeps.order import in_order
from service.sweeps.pairing import HELDOUT, Parts, add_behind_best, data_of, mean_part
from service.sweeps.schemas import SweepOut, SweepSummary, SweepUrls
from service.sweeps.store import Column, SweepMetric
from service.vocabulary import TERMINAL, Action, Status

IN_TURN = (
    Status.RUNNING,
    Status.QUEUED,
    Status.PAUSED,
    Status.FAILED,
    Status.CANCELLED,
)
"""Order of precedence: the first status that a point has is that of the sweep. Otherwise it has
succeeded."""
POINT = ("point", "experiment_id", "status")
"""The first columns of a table of points."""
PER_RUN = 100
"""Units of progress per run."""
MAX_TABLE_BYTES = 32 * 2**20
"""Maximum bytes of the swept values of a table, as JSON. A point may set a value of 200 KB, and an
answer with those of 10,000 points would take all memory."""
MAX_CSV_CHARACTERS = 128 * 2**20
"""Maximum number of characters in the cells of a table as CSV that contain text. The long form
repeats the swept values of a point for each metric."""
MAX_CSV_CELLS = 8_000_000
"""Maximum cells of a table as CSV. Each metric of a point has three columns, in which the other
points have empty cells."""


Document = dict[str, Any]
"""Data as in the schema of the same name. A table may have 100,000 cells, and objects of pydantic
would take twice as long."""


def summary_out(sweep: Sweep, counts: Mapping[Status, int], best: Document | None) -> SweepSummary:
    """Convert a sweep. `best` is its best point."""
    status = next((one for one in IN_TURN if counts.get(one)), Status.SUCCEEDED)
    path = f"/v1/sweeps/{sweep.id}"
    parts = ("table", "points", "events")
    return SweepSummary.of(
        sweep,
        owner=sweep.owner.name,
        title=sweep_title(sweep),
        status=status,
        terminal=status in TERMINAL,
        points=sum(counts.values()),
        counts={one: counts.get(one, 0) for one in Status},
        ended=sum(counts.get(one, 0) for one in TERMINAL),
        best=best,
        urls=SweepUrls(
            self=path,
            cancel=f"{path}:cancel",
            retry=f"{path}:retry",
            **{part: f"{path}/{part}" for part in parts},
        ),
    )


def sweep_out(
    sweep: Sweep,
    counts: Mapping[Status, int],
    best: Document | None,
    can: list[Action],
    running: float,
    end: tuple[float | None, str],
) -> SweepOut:
    """Convert a sweep. `can` has the actions that its reader may take, `running` is the progress of
    the running experiments in runs, `end` is the expected end and its basis."""
    summary = summary_out(sweep, counts, best)
    return SweepOut.model_construct(
        **dict(summary),
        can=can,
        spec=in_present_form(sweep.spec),
        after=sweep.comes_after,
        progress=Progress(
            done=int(PER_RUN * (summary.ended + running)),
            total=PER_RUN * summary.points,
            unit="hundredths of a run",
        ),
        estimated_end=moment(end[0]),
        estimate=end[1],
    )


Metrics = Mapping[str, Sequence[SweepMetric]]
"""The metrics of each experiment, by its id."""


def table(
    sweep: Sweep,
    points: Iterable[Row[Any]],
    metrics: Metrics,
    parts_of: Callable[[Sequence[str]], Mapping[str, Parts]],
    *,
    pooled: bool = True,
    order_by: str | None = None,
) -> Document:
    """Return the table of a sweep, as in `Table`; if not `pooled`, without pooled points and
    without the best. `parts_of` returns the `heldout_parts` of experiments. Raises ApiError."""
    rows, data = [], []
    size = 0
    spec: Mapping[str, Any] = {}
    for one in points:
        spec = spec or one.spec
        row = _row(sweep, one, metrics.get(one.id, ()))
        data.append(data_of(one.spec, sweep.fields))
        size += len(json.dumps(row["fields"]))
        if size > MAX_TABLE_BYTES:
            raise _too_large("of swept values", MAX_TABLE_BYTES)
        rows.append(row)
    groups = _groups(rows) if pooled and SEEDS in sweep.fields else []
    in_groups = [_pooled(rows, group, metrics) for group in groups]
    if any(HELDOUT in row["metrics"] for row in rows):
        parts = parts_of(_experiments(rows))
        add_behind_best(rows, [parts.get(row["experiment_id"]) for row in rows], data)
        of_groups = [
            mean_part([parts.get(id) for id in _experiments([rows[i] for i in group])])
            for group in groups
        ]
        add_behind_best(in_groups, of_groups, [data[group[0]] for group in groups])
    names = _names(rows, metrics)
    made = {"fields": sweep.fields, "metrics": names, "items": rows, "pooled": in_groups}
    if pooled:
        shown = in_groups or rows
        others = [path for path in sweep.fields if path != SEEDS]
        made |= {
            "chief_metric": chief_metric(names, sweep.fields),
            "varying": varying(shown, others),
            **conclusion(sweep, shown, rows, spec),
        }
    return made if order_by is None else _in_order(made, order_by)


def _in_order(made: Document, order_by: str) -> Document:
    """Return a table with its rows in another order. Raises ApiError."""
    columns = [*made["fields"], *made["metrics"]]
    orders = {name: in_order(made[name], order_by, columns) for name in ("items", "pooled")}
    ordered = made | {name: [made[name][i] for i in order] for name, order in orders.items()}
    if best := made.get("best"):
        place = {old: new for new, old in enumerate(orders["pooled"] or orders["items"])}
        ordered["best"] = best | {
            "row": place[best["row"]],
            "alike": sorted(place[i] for i in best["alike"]),
            "smallest": place.get(best["smallest"]),
        }
    return ordered


def _names(rows: Sequence[Document], metrics: Metrics) -> list[str]:
    """Return the names of all columns of metrics, final ones first."""
    interim = {one[0].title for of_run in metrics.values() for one in of_run if one[0].is_interim}
    names = dict.fromkeys(name for row in rows for name in row["metrics"])
    return sorted(names, key=interim.__contains__)


def _too_large(what: str, limit: int) -> ApiError:
    detail = (
        f"a table has at most {limit // 2**20} MiB {what}, and this one has more: list the "
        "experiments with GET /v1/experiments instead"
    )
    return invalid([Problem("/path/sweep_id", detail)])


def _row(sweep: Sweep, one: Row[Any], metrics: Sequence[SweepMetric]) -> Document:
    failure = failure_out(one)
    return {
        "point": one.point,
        "experiment_id": one.id,
        "fields": {path: value_at(one.spec, path) for path in sweep.fields},
        "status": one.status,
        "failure": failure and failure.model_dump(),
        "metrics": _cells(metrics),
    }


def _cells(metrics: Iterable[SweepMetric]) -> dict[str, Document]:
    """Return the mean of each column over seeds, as in `MetricCell`, final ones first."""
    groups: dict[Column, tuple[list[float | None], list[float | None]]] = {}
    for column, _, value, std_err in metrics:
        group = groups.get(column)
        if group is None:
            groups[column] = [value], [std_err]
        else:
            group[0].append(value)
            group[1].append(std_err)
    cells = {}
    for column, (values, errors) in sorted(groups.items(), key=lambda pair: pair[0].is_interim):
        mean, std_err = mean_of(column.name, values, errors)
        cells[column.title] = {"value": mean, "std_err": std_err, "count": len(values)}
    return cells


def _groups(rows: Sequence[Document]) -> list[list[int]]:
    """Return the indices of the points that differ only in their seeds."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[json.dumps(_beside_seeds(row))].append(i)
    return list(groups.values())


def _pooled(rows: Sequence[Document], group: Sequence[int], metrics: Metrics) -> Document:
    found = _experiments([rows[i] for i in group])
    return {
        "points": len(group),
        "fields": _beside_seeds(rows[group[0]]),
        "metrics": _cells(one for id in found for one in metrics.get(id, ())),
    }


def _experiments(rows: Sequence[Document]) -> list[str]:
    """Return the experiments of some points, each once: the cache may have answered several points
    with the same."""
    return list(dict.fromkeys(row["experiment_id"] for row in rows))


def _beside_seeds(row: Document) -> dict[str, Any]:
    return {path: value for path, value in row["fields"].items() if path != SEEDS}


def as_csv(made: Document) -> str:
    """Yield a line for each point: its number, experiment and status, the swept fields, and each
    metric with its standard error and its count of seeds. Lists and objects are JSON; missing
    values are empty."""
    head = [*POINT, *made["fields"], *_metric_columns(made)]
    lines = ([*_of_point(row), *_of_metrics(made, row["metrics"])] for row in made["items"])
    return _csv(head, lines)


def pooled_csv(made: Document) -> str:
    """Yield a line for each choice of the fields other than `seeds`, with the metrics over all
    seeds."""
    fields = [path for path in made["fields"] if path != SEEDS]
    lines = (
        [row["points"], *map(_cell, row["fields"].values()), *_of_metrics(made, row["metrics"])]
        for row in made["pooled"]
    )
    return _csv(["points", *fields, *_metric_columns(made)], lines)


def long_csv(made: Document, metrics: Metrics) -> str:
    """Yield a line for each value of a metric, with a column for each label."""
    found = [(row, metrics.get(row["experiment_id"], ())) for row in made["items"]]
    labels = [*dict.fromkeys(key for _, own in found for one in own for key in one[1])]

    def lines() -> Iterator[Sequence[Any]]:
        for row, own in found:
            point = [*_of_point(row)]
            for column, given, value, std_err in own:
                yield [*point, column.name, *map(given.get, labels), value, std_err]

    return _csv([*POINT, *made["fields"], "metric", *labels, "value", "std_err"], lines())


def _csv(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    return csv_text(chain([head], _limited(lines)))


def _limited(lines: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Yield the lines. Raises ApiError if they have too many cells or too much text."""
    size = cells = 0
    for line in lines:
        cells += len(line)
        if cells > MAX_CSV_CELLS:
            detail = (
                f"a table as CSV has at most {MAX_CSV_CELLS} cells, and this one has more: use "
                "format=csv&form=long, or format=json"
            )
            raise invalid([Problem("/query/form", detail)])
        for cell in line:
            if isinstance(cell, str):
                size += len(cell)
        if size > MAX_CSV_CHARACTERS:
            raise _too_large("of text as CSV", MAX_CSV_CHARACTERS)
        yield line


def _metric_columns(made: Document) -> Iterator[str]:
    return (f"{name}{what}" for name in made["metrics"] for what in ("", " std_err", " count"))


def _of_point(row: Document) -> Iterator[Any]:
    yield from (row[name] for name in POINT)
    yield from map(_cell, row["fields"].values())


def _of_metrics(made: Document, metrics: Mapping[str, Document]) -> Iterator[Any]:
    for name in made["metrics"]:
        yield from metrics[name].values() if name in metrics else (None, None, None)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | bool) else value
