"""Figures of a sweep: a metric against a swept field."""

import json
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mptlab.errors import Json
from mptlab.plots import BAND, STYLE, Plot
from mptlab.sweeps import flat_row, rows_of
from mptlab.tables import BEHIND_BEST

HELDOUT = "lml_heldout"
SIZE = "model.latent_dim"
ERROR = " std_err"
NAMES = {
    "lml": "log marginal likelihood, nats",
    "lml_heldout": "held-out log marginal likelihood, nats",
    "mpt": "MPT score, nats",
    "mpt_heldout": "held-out MPT score, nats",
    SIZE: "latent dimensions K",
}
"""Titles of axes."""


def draw(table: Json, y: str | None, x: str | None, title: str = "") -> Plot:
    """Return the figure of a sweep's table, of its means over seeds: a line for each choice of the
    fields other than `x`, with bars of two standard errors: of the difference from the best for the
    held-out LML, whose points share their observations. Raises ValueError with the known names."""
    rows = [flat_row(row) for row in rows_of(table)]
    swept = [name for name in table["fields"] if name in rows[0]] if rows else []
    x = _known("swept field", x or next(iter(swept), None), swept)
    chief = table["chief_metric"] or ""
    metric = _known("metric", (y or chief).removesuffix(ERROR), table["metrics"])
    y = f"{metric}{ERROR}" if y is not None and y.endswith(ERROR) else metric
    with mpl.rc_context(STYLE):
        figure = Plot(figsize=(5.5, 3.4), layout="constrained")
        axes = figure.add_subplot()
        axes.set(title=title, xlabel=NAMES.get(x, x), ylabel=_title(y))
        if y != metric and all(_is_positive(row[x]) and _is_positive(row.get(y)) for row in rows):
            axes.set(xscale="log", yscale="log")
        others = [group[0] for group in table["varying"] if x not in group]
        lines: dict[str, list[Json]] = {}
        for row in rows:
            label = ", ".join(f"{name.split('.')[-1]} {_text(row[name])}" for name in others)
            lines.setdefault(label, []).append(row)
        paired = y == HELDOUT and any(row.get(f"{BEHIND_BEST} std_err") for row in rows)
        for label, points in lines.items():
            _line(axes, points, x, y, BEHIND_BEST if paired else y, label)
        _mark_best(axes, rows, table["best"], x, y)
        if paired:
            axes.plot(
                [], [], " ", label="bars: two standard errors of\nthe difference from the best"
            )
        if axes.get_xscale() == "linear" and all(isinstance(row[x], int) for row in rows):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(fontsize="small")
    return figure


def _title(metric: str) -> str:
    name = metric.removesuffix(ERROR)
    title = NAMES.get(name, name)
    return title if name == metric else f"standard error of the {title}"


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0


def _known(what: str, name: str | None, known: Sequence[str]) -> str:
    if name is None or name not in known:
        raise ValueError(
            f"the sweep has no {what} {name or ''}: it has {', '.join(known) or 'none'}"
        )
    return name


def _line(axes: Axes, rows: Sequence[Json], x: str, y: str, of_error: str, label: str) -> None:
    """Draw `y` against `x`, with the error of the column `of_error`."""
    known = [row for row in rows if row.get(y) is not None]
    if all(isinstance(row[x], int | float) for row in known):
        known.sort(key=lambda row: float(row[x]))
    errors = [BAND * (row.get(f"{of_error} std_err") or 0.0) for row in known]
    axes.errorbar([_place(row[x]) for row in known], [row[y] for row in known], errors,
                  marker=".", linewidth=1, capsize=2, label=label or None)  # fmt: skip


def _mark_best(axes: Axes, rows: Sequence[Json], best: Json | None, x: str, y: str) -> None:
    """Mark the best point and, of models that differ by their size alone, the smallest that is as
    good."""
    if best is None or best["metric"] != y:
        return
    marked = {"best": rows[best["row"]]}
    if best["smallest"] not in (None, best["row"]):
        marked["smallest as good"] = rows[best["smallest"]]
    for (label, row), marker in zip(marked.items(), "os", strict=False):
        axes.plot([_place(row[x])], [row[y]], marker, markersize=9, color="black",
                  fillstyle="none", label=label)  # fmt: skip


def _place(value: Any) -> Any:
    """Return a number as it is, and other values as names on the axis."""
    return value if isinstance(value, int | float) else _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
