"""Figures of a sweep: a metric against a swept field."""

import json
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mptlab.errors import Json
from mptlab.plots import BAND, STYLE, Plot
from mptlab.tables import BY_MERIT, best_of

NAMES = {
    "lml": "log marginal likelihood, nats",
    "lml_heldout": "held-out log marginal likelihood, nats",
    "mpt": "MPT score, nats",
    "mpt_heldout": "held-out MPT score, nats",
    "model.latent_dim": "latent dimensions K",
}
"""Titles of axes."""


def draw(
    rows: Sequence[Json], fields: Sequence[str], y: str | None, x: str | None, title: str = ""
) -> Plot:
    """Return the figure of a sweep's means over seeds: a line for each choice of the fields other
    than `x`, with bars of two standard errors. Raises ValueError with the known names."""
    swept = [name for name in fields if name in rows[0]] if rows else []
    metrics = [name[: -len(" count")] for row in rows for name in row if name.endswith(" count")]
    x = _known("swept field", x or next(iter(swept), None), swept)
    best = next((name for name in (*BY_MERIT, *metrics) if name in metrics), None)
    y = _known("metric", y or best, list(dict.fromkeys(metrics)))
    with mpl.rc_context(STYLE):
        figure = Plot(figsize=(5.5, 3.4), layout="constrained")
        axes = figure.add_subplot()
        axes.set(title=title, xlabel=NAMES.get(x, x), ylabel=NAMES.get(y, y))
        others = [name for name in swept if name != x]
        lines: dict[str, list[Json]] = {}
        for row in rows:
            label = ", ".join(f"{name.split('.')[-1]} {_text(row[name])}" for name in others)
            lines.setdefault(label, []).append(row)
        for label, found in lines.items():
            _line(axes, found, x, y, label)
        _mark_best(axes, rows, x, y)
        if all(isinstance(row[x], int) for row in rows):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(fontsize="small")
    return figure


def _known(what: str, name: str | None, known: Sequence[str]) -> str:
    if name is None or name not in known:
        raise ValueError(
            f"the sweep has no {what} {name or ''}: it has {', '.join(known) or 'none'}"
        )
    return name


def _line(axes: Axes, rows: Sequence[Json], x: str, y: str, label: str) -> None:
    known = [row for row in rows if row.get(y) is not None]
    if all(isinstance(row[x], int | float) for row in known):
        known.sort(key=lambda row: float(row[x]))
    errors = [BAND * (row.get(f"{y} std_err") or 0.0) for row in known]
    axes.errorbar([_place(row[x]) for row in known], [row[y] for row in known], errors,
                  marker=".", linewidth=1, capsize=2, label=label or None)  # fmt: skip


def _mark_best(axes: Axes, rows: Sequence[Json], x: str, y: str) -> None:
    best = best_of(rows)
    if best is not None and best.metric == y:
        row = rows[best.row]
        axes.plot([_place(row[x])], [row[y]], "o", markersize=9, color="black",
                  fillstyle="none", label="best")  # fmt: skip


def _place(value: Any) -> Any:
    """Return a number as it is, and other values as names on the axis."""
    return value if isinstance(value, int | float) else _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
