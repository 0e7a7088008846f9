"""Pictures of a report: the curves of a preset as in the paper, one panel for each experiment, or
its figures with their intervals."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mptlab.errors import Json
from mptlab.plots import SCORES, STYLE, named, size_axis

WIDTH = 7.5
"""Width of a picture in inches."""
MAX_PANELS = 4
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours that colour-blind readers tell apart (Okabe and Ito 2008)."""
OUTCOMES = {"agrees": "#009e73", "differs": "#d55e00", "cannot tell": "#8a6d00"}
NOISY = "mpt"
"""Series that is computed from the masks of one step: drawn thin."""
EARLY = 0.05
"""Share of a training that may be below the shown range."""
NAMES = {"lml": "LML", "lml_heldout": "LML of held-out data", "elbo": "ELBO", "mpt": "MPT score"}
SHORT = {"per_size": "P", "latent_dim": "K"}
"""Names of fields in titles."""
LINES = {"fig1-right": ("bias", "published bias"), "fig2": ("maximum_lml", "maximum of the LML")}
"""Published figure that is drawn as a line, and its name, by the beginning of a preset's name."""


def picture(preset: Json, curves: Sequence[Json], comparisons: Sequence[Json]) -> Figure | None:
    """Draw a preset's curves, or its figures if there is no form for them. Return None if there is
    nothing to draw."""
    form = next((form for name, form in FORMS.items() if preset["name"].startswith(name)), None)
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        if form is not None and any(experiment["series"] for experiment in curves):
            _panels(figure, preset, curves[:MAX_PANELS], form)
        elif measured := [row for row in comparisons if row["measured"] is not None]:
            _intervals(figure, measured)
        else:
            return None
    return figure


Panel = Callable[[Axes, Sequence[Json]], None]


def _panels(figure: Figure, preset: Json, curves: Sequence[Json], form: Panel) -> None:
    figure.set_size_inches(WIDTH, 2.8 if len(curves) > 1 else 3.2)
    all_axes = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    limits: list[float] = []
    for place, (axes, experiment) in enumerate(zip(all_axes, curves, strict=True)):
        form(axes, experiment["series"])
        limits += axes.get_ylim()
        axes.set_title(_what_differs(preset["specs"], place), fontsize="medium")
        for name, (figure_name, label) in LINES.items():
            if preset["name"].startswith(name):
                for value in preset["published"].get(figure_name, ()):
                    axes.axhline(value, color="black", linewidth=0.8, linestyle=":", label=label)
        if place:
            axes.set_ylabel("")
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(fontsize="small")
    all_axes[0].set_ylim(min(limits), max(limits))


def _what_differs(specs: Sequence[Json], place: int) -> str:
    """Return the fields of a spec in which the specs of a preset differ, with their values."""
    flat = [dict(_leaves(spec)) for spec in specs]
    spec = flat[place]
    names = [name for name in spec if any(spec[name] != other.get(name) for other in flat)]
    fields = dict.fromkeys((name.rpartition(".")[2], spec[name]) for name in names)
    return ", ".join(
        f"{SHORT[name]} = {value}" if name in SHORT else f"{name.replace('_', ' ')} {value}"
        for name, value in fields
    )


def _leaves(spec: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(spec, dict):
        for key, value in spec.items():
            yield from _leaves(value, f"{name}.{key}")
    elif not isinstance(spec, list):
        yield name, spec


def _area(axes: Axes, series: Sequence[Json]) -> None:
    for _, seeds, colour in _groups(_final(series)):
        _draw(axes, seeds, colour, "")
        x, mean = _mean(seeds)
        axes.fill_between(x, mean, 0.0, color=colour, alpha=0.15, linewidth=0)
    axes.axhline(0.0, color="black", linewidth=0.5)
    axes.set(xlabel=size_axis(_final(series)), ylabel="score S(m), nats")


def _scores(axes: Axes, series: Sequence[Json]) -> None:
    for label, seeds, colour in _groups(_final(series)):
        _draw(axes, seeds, colour, label)
    axes.set(xlabel=size_axis(_final(series)), ylabel="score, nats a token")


def _evolution(axes: Axes, series: Sequence[Json]) -> None:
    """Draw the mean curve of scores at each epoch that has one, from light to dark."""
    epochs = sorted({curve["labels"]["epoch"] for curve in series if "epoch" in curve["labels"]})
    shades = mpl.colormaps["viridis_r"].resampled(len(epochs) + 1)
    for place, epoch in enumerate(epochs, 1):
        seeds = [curve for curve in series if curve["labels"].get("epoch") == epoch]
        axes.plot(*_mean(seeds), color=shades(place), linewidth=1.2, label=f"epoch {epoch}")
    axes.set(xlabel="mask size m", ylabel="score S(m), nats")


def _convergence(axes: Axes, series: Sequence[Json]) -> None:
    for curve, colour in zip(named(series, "convergence"), COLOURS, strict=False):
        axes.plot(curve["x"], curve["value"], color=colour, linewidth=1,
                  label=f"seed {curve['labels']['seed']}")  # fmt: skip
    axes.axhline(0.0, color="black", linewidth=0.8, linestyle="--")
    axes.set(xscale="log", xlabel="masks of each size P", ylabel="MPT − LML, nats")


def _training(axes: Axes, series: Sequence[Json]) -> None:
    _by_epoch(axes, named(series, "lml", NOISY))


def _objectives(axes: Axes, series: Sequence[Json]) -> None:
    """Draw the LML and the bound that one objective maximises. The score of one mask is too noisy
    to be seen beside them."""
    _by_epoch(axes, named(series, "lml_heldout") or named(series, "lml", "elbo"))


def _by_epoch(axes: Axes, series: Sequence[Json]) -> None:
    """Draw means over seeds by epoch. The axis shows the range of the LML after the beginning."""
    shown: list[float] = []
    for label, seeds, colour in _groups(series):
        _draw(axes, seeds, colour, label)
        if seeds[0]["name"] != NOISY:
            x, mean = _mean(seeds)
            shown += [value for epoch, value in zip(x, mean, strict=True) if epoch > EARLY * x[-1]]
    if shown:
        low, high = min(shown), max(shown)
        axes.set_ylim(low - 0.1 * (high - low), high + 0.25 * (high - low))
    axes.set(xlabel="epoch", ylabel="nats an observation")


def _bias(axes: Axes, series: Sequence[Json]) -> None:
    for _, seeds, colour in _groups(named(series, "bias")):
        _draw(axes, seeds, colour, "")
    axes.axhline(0.0, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="mask size m", ylabel="D · S(m) − LML, nats", yscale="symlog")


FORMS: dict[str, Panel] = {
    "table1": _area,
    "fig1": _convergence,
    "fig2": _training,
    "fig3": _objectives,
    "fig4": _area,
    "fig5-left": _evolution,
    "fig5-right": _scores,
    "table2": _scores,
    "small-bert": _scores,
    "unbiased-rate-molecules": _scores,
    "unbiased-rate": _bias,
}
"""Forms of curves by the beginning of a preset's name."""


def _intervals(figure: Figure, comparisons: Sequence[Json]) -> None:
    """Draw a row for each figure: its interval, and the range in which it agrees."""
    figure.set_size_inches(WIDTH, 0.35 + 0.42 * len(comparisons))
    rows = figure.subplots(len(comparisons), 1, squeeze=False)[:, 0]
    for axes, comparison in zip(rows, comparisons, strict=True):
        value, half_width = comparison["measured"], comparison["half_width"]
        reach = [value - half_width, value + half_width]
        colour = OUTCOMES[comparison["outcome"]]
        bounds = [bound for bound in (comparison["low"], comparison["high"]) if bound is not None]
        low, high = min(reach + bounds), max(reach + bounds)
        pad = 0.08 * (high - low) or 1.0
        axes.set(xlim=(low - pad, high + pad), ylim=(-1, 1), yticks=[])
        start, end = (comparison["low"], comparison["high"])
        axes.axvspan(
            low - pad if start is None else start, high + pad if end is None else end,
            color="#dbe9df", linewidth=0,
        )  # fmt: skip
        axes.plot(reach, [0, 0], color=colour, linewidth=3)
        axes.plot(value, 0, "o", color=colour, markersize=5)
        axes.spines["left"].set_visible(False)
        axes.tick_params(labelsize="x-small", length=2, pad=1)
        axes.set_ylabel(comparison["what"], rotation=0, ha="right", va="center", fontsize="small")


def _draw(axes: Axes, seeds: Sequence[Json], colour: str, label: str) -> None:
    """Draw the mean over seeds, and each seed as a thin line."""
    noisy = seeds[0]["name"] == NOISY
    if len(seeds) > 1:
        for curve in seeds:
            alpha = 0.15 if noisy else 0.4
            axes.plot(curve["x"], curve["value"], color=colour, linewidth=0.5, alpha=alpha)
    (mean,) = axes.plot(*_mean(seeds), color=colour, label=label, linewidth=0.8, alpha=0.6)
    if not noisy:
        mean.set(linewidth=1.6, alpha=1.0, zorder=3)


def _mean(seeds: Sequence[Json]) -> tuple[list[float], list[float]]:
    """Return the places that all seeds have, and the means there."""
    columns = [dict(zip(curve["x"], curve["value"], strict=True)) for curve in seeds]
    means = []
    for x in columns[0]:
        values = [column.get(x) for column in columns]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            means.append((x, fmean(known)))
    return [x for x, _ in means], [value for _, value in means]


def _groups(series: Sequence[Json]) -> Iterable[tuple[str, list[Json], str]]:
    """Yield the series that differ only in their seed, with their label and a colour."""
    groups: dict[str, list[Json]] = {}
    for curve in series:
        name = NAMES.get(curve["name"], curve["name"].replace("_", " "))
        by = curve["labels"].get("objective")
        groups.setdefault(name if by is None else f"{name}, trained by {by.upper()}", []).append(
            curve
        )
    for (label, seeds), colour in zip(groups.items(), COLOURS, strict=False):
        yield label, seeds, colour


def _final(series: Sequence[Json]) -> list[Json]:
    """Return the curves of scores after training, of the model alone."""
    scores = named(series, *SCORES)
    return [
        curve for curve in scores if not {"epoch", "step"} & {*curve["labels"]}
        and curve["labels"].get("model", "model") == "model"
    ]  # fmt: skip
