"""The best row of a sweep's table, the rows that are as good, and what to say about them."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mptcore.protocol.metrics import BY_MERIT, RESULTS
from service.experiments.titles import text_of, value_at
from service.sweeps.models import Sweep
from service.sweeps.pairing import BEHIND_BEST, HELDOUT

Row = dict[str, Any]
"""A row of a table, with its `fields` and `metrics`."""

SEEDS = "seeds"
"""The field whose points are pooled."""
SIZE = "model.latent_dim"
MEASURING = ("evaluate", "compute", SEEDS)
"""Parts of a spec that change the measurement, and nothing that is measured."""
TIE = 1e-6
"""Difference in nats up to which rows are equal."""
ALIKE = 2.0
"""Standard errors of the difference up to which a row is as good as the best."""
BELOW_DIM = ("ppca", "factor_analysis")
"""Families whose latent dimensions are fewer than the columns of the data."""
OTHER_ROWS = (
    "Errors do not cover which rows the models were fitted to: another split of the rows "
    "(data.seed=1) may change the order of values that are close"
)
SAME_ROWS = (
    "The LML of the data that a model was fitted to rises with the latent dimensions. To choose, "
    "hold rows out: data.heldout=0.2"
)
STANDARDIZED = "All results are of standardized values."


MAX_ALIKE = 4
"""Maximum number of choices that a sentence lists."""


class Best(NamedTuple):
    """The metric that decides, the index of its best row, and of the rows that its error does not
    tell from the best."""

    metric: str
    row: int
    alike: list[int]


def deciding(fields: Sequence[str]) -> list[str]:
    """Return the swept fields that choose the model, its data or its training."""
    return [path for path in fields if path.split(".")[0] not in MEASURING]


def varying(rows: Sequence[Row], fields: Sequence[str]) -> list[list[str]]:
    """Return the fields that have several values; those that change together are one list."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for field in fields:
        numbers: dict[str, int] = {}
        values = (json.dumps(row["fields"].get(field)) for row in rows)
        group = tuple(numbers.setdefault(value, len(numbers)) for value in values)
        if len(numbers) > 1:
            groups.setdefault(group, []).append(field)
    return [*groups.values()]


def chief_metric(metrics: Sequence[str], fields: Sequence[str]) -> str | None:
    """Return the metric that a chart shows first: the one that chooses between models or, if only
    the measurement is swept, the score."""
    is_measurement = any(path != SEEDS for path in fields) and not deciding(fields)
    names = ("mpt_heldout", "mpt", *BY_MERIT) if is_measurement else BY_MERIT
    return next((name for name in (*names, *metrics) if name in metrics), None)


def best_of(rows: Sequence[Row]) -> Best | None:
    """Return the best of rows with the same data, by the held-out LML or, without one, by the best
    known measure. None for fewer than two values."""
    metric = next((name for name in BY_MERIT if any(name in row["metrics"] for row in rows)), None)
    if metric is None:
        return None
    values = {i: _cell(row, metric)["value"] for i, row in enumerate(rows)}
    with_value = [i for i, value in values.items() if value is not None]
    if len(with_value) < 2:
        return None
    best = max(with_value, key=lambda i: float(values[i]))
    others = (i for i in with_value if i != best)
    return Best(metric, best, [i for i in others if _is_as_good(rows[i], rows[best], metric)])


def best_point(fields: Sequence[str], metrics: Mapping[str, Mapping[str, Row]]) -> Row | None:
    """Return the best experiment by the cells of each, or None if its points differ in more than
    the model or its training, and so only the pooled rows of a table can tell."""
    if not deciding(fields) or any(path.split(".")[0] in ("data", SEEDS) for path in fields):
        return None
    rows = [{"metrics": cells} for cells in metrics.values()]
    if (best := best_of(rows)) is None:
        return None
    cell = _cell(rows[best.row], best.metric)
    return {
        "metric": best.metric,
        "label": RESULTS[best.metric],
        "value": cell["value"],
        "std_err": cell["std_err"],
        "experiment_id": [*metrics][best.row],
        "at": None,
    }


def place_of(point_spec: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Return the swept fields of a point that choose its model, data or training."""
    swept = deciding(fields)
    return _choice({"fields": {path: value_at(point_spec, path) for path in swept}}, swept)


def smallest_as_good(best: Best, rows: Sequence[Row], fields: Sequence[str]) -> int | None:
    """Return the row with the fewest latent dimensions of those that are as good as the best. None
    if other fields than the family were swept too, or if the best is the only one."""
    if SIZE not in fields or not {*fields} <= {SIZE, "model.family"} or not best.alike:
        return None
    return min((best.row, *best.alike), key=lambda i: int(rows[i]["fields"][SIZE]))


def conclusion(
    sweep: Sweep, rows: Sequence[Row], points: Sequence[Row], spec: Mapping[str, Any]
) -> Row:
    """Return `best`, `notes` and `extension` of a table. `rows` are its points, or the pooled ones
    if seeds are swept; `spec` is that of a point."""
    swept = deciding(sweep.fields)
    notes = []
    best = best_of(rows) if swept else None
    of_data = [path for path in swept if path.split(".")[0] == "data"]
    different = [path for group in varying(rows, of_data) for path in group]
    if value_at(spec, "data.seed") == "run" and not _have_same_seeds(points):
        different.append(SEEDS)
    fields = [group[0] for group in varying(rows, swept)] or swept
    smallest = extension = None
    if best is not None and different:
        best = None
        notes.append(f"No row is the best, because the data differ: {', '.join(different)}")
    elif best is not None:
        smallest = smallest_as_good(best, rows, fields)
        notes += _sentences(best, smallest, rows, fields)
        if best.metric.endswith("_heldout") and (more := _beyond(best, rows, spec)):
            extension = _extension(sweep, points, more)
            notes.append(_edge(sweep, rows[best.row]["fields"][SIZE], more, extension))
    if (sweep.spec.get("data") or {}).get("standardize"):
        notes.append(STANDARDIZED)
    shown = best and {
        **best._asdict(),
        "label": RESULTS[best.metric],
        "smallest": smallest,
        "fields": fields,
    }
    return {"best": shown, "notes": notes, "extension": extension}


def _have_same_seeds(points: Sequence[Row]) -> bool:
    """Return whether the points of each choice of the other fields have the same seeds."""
    seeds: dict[str, set[str]] = {}
    for row in points:
        others = {path: value for path, value in row["fields"].items() if path != SEEDS}
        seeds.setdefault(json.dumps(others), set()).add(json.dumps(row["fields"].get(SEEDS)))
    return all(one == next(iter(seeds.values())) for one in seeds.values())


def _sentences(
    best: Best, smallest: int | None, rows: Sequence[Row], fields: Sequence[str]
) -> list[str]:
    """Return the best choice of the swept fields, and those that are as good within the error."""
    chosen = _choice(rows[best.row], fields)
    text = f"Best by {RESULTS[best.metric]}: {chosen}"
    alike = dict.fromkeys(_choice(rows[i], fields) for i in best.alike)
    alike.pop(chosen, None)
    if alike:
        shown = _range_of(best, rows, fields) or [*alike][:MAX_ALIKE]
        more = 0 if len(shown) == 1 else len(alike) - len(shown)
        text += f"; within two standard errors: {'; '.join(shown)}"
        text += f"; and {more} more" if more else ""
    sentences = [text]
    if smallest is not None:
        words = _choice(rows[smallest], fields)
        sentences.append(f"The smallest model as good as the best: {words}")
    if best.metric == HELDOUT:
        sentences.append(OTHER_ROWS)
    elif best.metric == "lml" and SIZE in fields:
        sentences.append(SAME_ROWS)
    return sentences


def _range_of(best: Best, rows: Sequence[Row], fields: Sequence[str]) -> list[str]:
    """Return the latent dimensions that are as good as the best as one range, if nothing else is
    swept, and they are three or more without one between them that is not as good."""
    if [*fields] != [SIZE]:
        return []
    as_good = {rows[i]["fields"][SIZE] for i in (best.row, *best.alike)}
    alike = sorted(as_good - {rows[best.row]["fields"][SIZE]})
    sizes = {row["fields"][SIZE] for row in rows}
    between = {size for size in sizes if min(as_good) <= size <= max(as_good)}
    return [f"K = {alike[0]} to {alike[-1]}"] if len(alike) > 2 and between == as_good else []


def _beyond(best: Best, rows: Sequence[Row], spec: Mapping[str, Any]) -> range:
    """Return further latent dimensions if the best is the first or last of several, ascending.
    Empty if no further value is possible."""
    sizes = sorted({row["fields"].get(SIZE) for row in rows} - {None})
    if len(sizes) < 2:
        return range(0)
    size = rows[best.row]["fields"][SIZE]
    if size == sizes[-1]:
        step, last = size - sizes[-2], 2 * size
        dim = value_at(spec, "data.dim")
        if value_at(spec, "model.family") in BELOW_DIM and dim is not None:
            last = min(last, dim - 1)
        return range(size + step, last + 1, step)
    if size == sizes[0]:
        step = sizes[1] - size
        return range(size % step or step, size, step)
    return range(0)


def _edge(sweep: Sweep, size: int, more: range, extension: Mapping[str, list[Any]] | None) -> str:
    """Return a sentence about the best latent dimension, the first or last, with the command that
    extends the sweep."""
    place, end = ("last", more[-1]) if more[0] > size else ("first", more[0])
    text = f"K = {size} is the {place} value: extend to {end}"
    if extension is None:
        return text
    words = ["mpt", "extend", sweep.id]
    for path, values in extension.items():
        if path != SIZE:
            words += ["--over", f"{path}={json.dumps(values, separators=(',', ':'))}"]
        elif more.step == 1:
            words += ["--over", f"{path}={more[0]}..{more[-1]}"]
        else:
            words += ["--over", f"{path}={','.join(map(str, more))}"]
    return f"{text}: {shlex.join(words)}"


def _extension(sweep: Sweep, points: Sequence[Row], sizes: range) -> dict[str, list[Any]] | None:
    """Return the grid of points with more latent dimensions. None if the points are no grid."""
    grid: dict[str, list[Any]] = {}
    for path in sweep.fields:
        by_text = {json.dumps(row["fields"].get(path)): row["fields"].get(path) for row in points}
        grid[path] = [*by_text.values()]
    if len(points) != math.prod(map(len, grid.values())):
        return None
    return grid | {SIZE: [*sizes]}


def _cell(row: Row, metric: str) -> Row:
    cell: Row = row["metrics"].get(metric) or {"value": None, "std_err": None}
    return cell


def _is_as_good(row: Row, best: Row, metric: str) -> bool:
    """Return whether a row is behind the best by at most two standard errors of the difference:
    over held-out rows that both share, where these two were compared, otherwise from the errors of
    both."""
    cell, of_best, behind = _cell(row, metric), _cell(best, metric), _cell(row, BEHIND_BEST)
    gap = of_best["value"] - cell["value"]
    if metric == HELDOUT and behind["value"] == gap:
        std_err = behind["std_err"] or 0.0
    else:
        std_err = math.hypot(of_best["std_err"] or 0.0, cell["std_err"] or 0.0)
    return bool(gap <= max(ALIKE * std_err, TIE))


def _choice(row: Row, fields: Sequence[str]) -> str:
    """Return the values of fields in a row: "K = 3, model.family = ppca"."""
    values = ((path, row["fields"][path]) for path in fields if path in row["fields"])
    names = {SIZE: "K"}
    return ", ".join(f"{names.get(path, path)} = {text_of(value)}" for path, value in values)
