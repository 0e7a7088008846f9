"""Curves of an experiment: as lists, as a table of all points, as a figure."""

import importlib
import io
import os
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Any

from mptlab.errors import Json

POINT = ("x", "value", "std_err", "n")


class Curves(list[Json]):
    """Series by column, as the service returns them. Each has `name`, `labels`, `x`, `value`,
    `std_err`, `n`, and `reasons` for missing numbers."""

    def __init__(self, series: Iterable[Json] = (), title: str = ""):
        super().__init__(series)
        self.title = title

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each point and a column for each label."""
        return needed("pandas", "frames").DataFrame(self.columns())

    def to_arrow(self) -> Any:
        """Return the same table as an Arrow table."""
        return needed("pyarrow", "frames").table(self.columns())

    def plot(self, kind: str | None = None, file: str | os.PathLike[str] | None = None) -> Any:
        """Return a matplotlib figure in one of the paper's forms: scores, area, convergence,
        training, evolution, comparison. By default the form is chosen from the series. With `file`,
        also save the figure; the file's suffix sets the format, and .pdf and .svg are vector
        graphics."""
        needed("matplotlib", "plots")
        from mptlab import plots

        figure = plots.draw(self, kind, self.title)
        if file is not None:
            plots.save(figure, file)
        return figure

    def columns(self) -> Json:
        """Return the table of all points, as columns by name."""
        rows = list(self._rows())
        labels = dict.fromkeys(label for series in self for label in series["labels"])
        names = ("series", *labels, *POINT, "reason")
        return {name: [row.get(name) for row in rows] for name in names}

    def _rows(self) -> Iterator[Json]:
        for series in self:
            reasons = series.get("reasons") or [None] * len(series["x"])
            head = {"series": series["name"], **series["labels"]}
            columns = [series[name] for name in POINT]
            for *point, reason in zip(*columns, reasons, strict=True):
                yield head | dict(zip(POINT, point, strict=True)) | {"reason": reason}

    def _repr_html_(self) -> str:
        headers = ("series", "labels", "points", "from x", "to x", "last value")
        return table_html(headers, map(_facts, self))


def curves_together(experiments: Iterable[tuple[str, Curves]]) -> Curves:
    """Return the curves of experiments, given their titles; of several, each curve has the title of
    its experiment as a label."""
    titled = [*experiments]
    if len(titled) == 1:
        return titled[0][1]
    return Curves(
        series | {"labels": {"experiment": title, **series["labels"]}}
        for title, curves in titled
        for series in curves
    )


def _facts(series: Json) -> tuple[Any, ...]:
    """Return the name of a series, its labels, its number of points and its ends."""
    labels = ", ".join(f"{key}={value}" for key, value in series["labels"].items())
    x, values = series["x"], series["value"]
    ends = (x[0], x[-1], values[-1]) if x else ("", "", "")
    return series["name"], labels, series.get("total_points", len(x)), *ends


def table_html(headers: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return an HTML table for a notebook, with users' text escaped."""
    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
    return f"<td>{escape(text)}</td>"


def picture_html(draw: Callable[[], Any]) -> str:
    """Return a figure for a notebook, or nothing if matplotlib is missing or there is nothing to
    draw yet."""
    try:
        figure = draw()
        from mptlab import plots

        plots.save(figure, content := io.BytesIO(), "svg")
    except (ImportError, ValueError):
        return ""
    source = b64encode(content.getvalue()).decode()
    return f'<img alt="figure" src="data:image/svg+xml;base64,{source}">'


def needed(name: str, extra: str) -> Any:
    """Return the module of this name. Raises ImportError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        package = name.split(".")[0]
        message = f"{package} is not installed: run pip install {package}, or install the client"
        raise ImportError(f"{message} with its extra, 'mptlab[{extra}]'") from None
