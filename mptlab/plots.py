"""The paper's figures: one function for each form, from the service's series. Nothing here uses
pyplot: no window opens, and the user's backend stays unchanged."""

import io
import math
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mptlab.errors import Json

BAND = 2.0
"""Half-width of error bands, in standard errors."""

MAX_IN_LEGEND = 20
"""Maximum number of lines that a legend names; a longer one leaves no room for the axes."""

STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text, as journals require
    "svg.fonttype": "none",
}


class Plot(Figure):
    """A figure that a notebook displays."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        save(self, content, "png")
        return content.getvalue()


def draw(series: Sequence[Json], kind: str | None = None, title: str = "") -> Plot:
    """Return the figure of a kind; by default the kind is chosen from the series. Raises ValueError
    with the known kinds, or with the missing series."""
    if kind is not None and kind not in KINDS:
        raise ValueError(f"{kind} is not a kind of figure: choose from {', '.join(KINDS)}")
    chosen = kind or next(
        (name for name, (_, names) in KINDS.items() if named(series, *names)), None
    )
    if chosen is None:
        raise ValueError("the experiment has no curves")
    form, names = KINDS[chosen]
    drawn = named(series, *names)
    if not drawn:
        there = ", ".join(dict.fromkeys(curve["name"] for curve in series)) or "nothing"
        wanted = " or ".join(names)
        raise ValueError(f"{chosen} needs the series {wanted}, but there is only {there}")
    with mpl.rc_context(STYLE):
        figure = Plot(figsize=(5.5, 3.4), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title)
        form(axes, drawn)
        if 1 < len(axes.get_legend_handles_labels()[0]) <= MAX_IN_LEGEND:
            axes.legend(fontsize="small")
    return figure


def save(
    figure: Figure, file: str | os.PathLike[str] | io.BytesIO, form: str | None = None
) -> None:
    """Write a figure in the format of the file's suffix; pdf and svg are vector graphics. Raises
    ValueError for an unknown suffix."""
    if not isinstance(file, io.BytesIO):
        form = Path(file).suffix.removeprefix(".").lower()
        known = figure.canvas.get_supported_filetypes()
        if form not in known:
            raise ValueError(f"{file} is not a picture format: use .pdf, .svg or .png")
    with mpl.rc_context(STYLE):
        figure.savefig(file, format=form, dpi=150)


def scores(axes: Axes, series: Sequence[Json]) -> None:
    """Draw S(m) against the mask size m, or the masking rate."""
    _lines(axes, _at_end(series))
    axes.set(xlabel=size_axis(series), ylabel="score S(m), nats")


def area(axes: Axes, series: Sequence[Json]) -> None:
    """Draw the area under the MPT curve, which is the log marginal likelihood."""
    for curve, colour in zip(_at_end(series), _colours(), strict=False):
        _line(axes, curve, colour, _label(curve))
        x, value = _finite(curve)
        axes.fill_between(x, value, 0.0, color=colour, alpha=0.15, linewidth=0)
    axes.axhline(0.0, color="black", linewidth=0.5)
    axes.set(xlabel=size_axis(series), ylabel="score, nats")


def convergence(axes: Axes, series: Sequence[Json]) -> None:
    """Draw the cumulative MPT score, which approaches the LML as masks are added (Fig. 1)."""
    _lines(axes, series)
    axes.axhline(0.0, color="black", linewidth=0.8, linestyle="--")
    axes.set(xscale="log", xlabel="masks of each size P", ylabel="MPT − LML, nats")


def training(axes: Axes, series: Sequence[Json]) -> None:
    """Draw the training objective and the LML for each epoch (Fig. 2 and 3)."""
    _lines(axes, series, dashed=("lml", "lml_heldout"), named=True)
    axes.set(xlabel="epoch", ylabel="nats per observation")


def evolution(axes: Axes, series: Sequence[Json]) -> None:
    """Draw the curve of scores at several epochs of one training, from light to dark (Fig. 4)."""
    moments = sorted({_moment(curve) for curve in series})
    shades = mpl.colormaps["viridis_r"].resampled(len(moments) + 1)
    for curve in series:
        colour = shades(moments.index(_moment(curve)) + 1)
        label = _label(curve) if _moment(curve) < math.inf else f"{_label(curve)}, at the end"
        _line(axes, curve, colour, label)
    axes.set(xlabel=size_axis(series), ylabel="score, nats")


def comparison(axes: Axes, series: Sequence[Json]) -> None:
    """Draw the model's score minus the baseline's on the same masks, with standard errors of the
    paired differences."""
    for curve, colour in zip(series, _colours(), strict=False):
        errors = [BAND * (e or 0.0) for e in curve["std_err"]]
        axes.errorbar(curve["x"], curve["value"], errors, color=colour, linewidth=1, capsize=2,
                      marker=".", label=_label(curve))  # fmt: skip
    axes.axhline(0.0, color="black", linewidth=0.8, linestyle="--")
    unit = "nats per token" if _is_by_rate(series) else "nats"
    axes.set(xlabel=size_axis(series), ylabel=f"model − baseline, {unit}")


def differences(values: Sequence[float], errors: Sequence[float | None], label: str) -> Plot:
    """Return a figure of the differences of texts in this order, with their standard errors."""
    with mpl.rc_context(STYLE):
        figure = Plot(figsize=(5.5, 3.4), layout="constrained")
        axes = figure.add_subplot()
        bars = [BAND * (error or 0.0) for error in errors]
        axes.errorbar(range(1, len(values) + 1), values, bars, fmt=".", markersize=3, linewidth=1)
        axes.axhline(0.0, color="black", linewidth=0.8, linestyle="--")
        axes.set(xlabel="texts, by their difference", ylabel=label)
    return figure


Form = Callable[[Axes, Sequence[Json]], None]
SCORES = ("score", "score_by_rate")
EVOLVING = ("epoch", "step")
"""Return the labels of curves that were recorded during training."""

KINDS: dict[str, tuple[Form, tuple[str, ...]]] = {
    "training": (training, ("mpt", "elbo", "lml", "lml_heldout")),
    "convergence": (convergence, ("convergence",)),
    "scores": (scores, SCORES),
    "area": (area, SCORES),
    "evolution": (evolution, SCORES),
    "comparison": (comparison, ("score_difference",)),
}
"""Each kind of figure and the series that it draws. The first kind with data is the default."""


def named(series: Iterable[Json], *names: str) -> list[Json]:
    """Return the series of these names."""
    return [curve for curve in series if curve["name"] in names]


def _lines(
    axes: Axes, series: Sequence[Json], dashed: Sequence[str] = (), named: bool = False
) -> None:
    """Draw a line for each series; series with the same labels have the same colour."""
    colours = dict(zip(dict.fromkeys(map(_label, series)), _colours(), strict=False))
    for curve in series:
        label = f"{curve['name']} {_label(curve)}" if named else _label(curve)
        style = "--" if curve["name"] in dashed else "-"
        _line(axes, curve, colours[_label(curve)], label.strip(), style)


def _line(axes: Axes, curve: Json, colour: Any, label: str, style: str = "-") -> None:
    axes.plot(curve["x"], curve["value"], style, color=colour, linewidth=1, label=label)
    known = [
        (x, value - BAND * error, value + BAND * error)
        for x, value, error in zip(curve["x"], curve["value"], curve["std_err"], strict=True)
        if value is not None and error is not None
    ]
    if known:
        x, low, high = zip(*known, strict=True)
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def _finite(curve: Json) -> tuple[list[float], list[float]]:
    pairs = [(x, v) for x, v in zip(curve["x"], curve["value"], strict=True) if v is not None]
    return [x for x, _ in pairs], [v for _, v in pairs]


def _colours() -> Iterable[str]:
    return cycle(mpl.rcParams["axes.prop_cycle"].by_key()["color"])


def _label(curve: Json) -> str:
    names = ("experiment", "model")
    labels = curve["labels"].items()
    return ", ".join(str(value) if key in names else f"{key} {value}" for key, value in labels)


def _at_end(series: Sequence[Json]) -> list[Json]:
    """Return the series without those recorded during training, if any others exist."""
    return [curve for curve in series if _moment(curve) == math.inf] or list(series)


def _moment(curve: Json) -> float:
    moments = [curve["labels"][name] for name in EVOLVING if name in curve["labels"]]
    return float(moments[0]) if moments else math.inf  # the end of training


def size_axis(series: Sequence[Json]) -> str:
    return "masking rate" if _is_by_rate(series) else "mask size m"


def _is_by_rate(series: Sequence[Json]) -> bool:
    """Return whether x is a masking rate, at most 1. Mask sizes are whole numbers from 1."""
    return any(x < 1 for curve in series for x in curve["x"])
