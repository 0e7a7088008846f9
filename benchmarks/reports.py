"""`python -m benchmarks.reports NAME …` runs benchmarks/reports/NAME.json, or all specs of the
preset NAME (Fig. 3, or a claim of our own), and writes NAME.md and NAME.png to benchmarks/reports:
what ran, on what machine, every metric, the curves at some places, and a preset's verdict.

The data, texts and checkpoints come from MPT_DATA_DIR and MPT_MODELS_DIR.
"""

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.table import machine
from mptcore.presets import PRESETS, Results, Verdict
from mptcore.protocol.records import Labels, Log, Metric, Point, Record, encode
from mptcore.run import run
from mptcore.specs import ExperimentSpec, parse_spec

FOLDER = Path(__file__).parent / "reports"
OWN = ("small-bert-", "uniform-against-fixed")
"""Prefix of the names of our own presets."""
SHOWN = 9
"""Places in the table of a curve."""
CURVES = {"score_by_rate": "masking rate", "score": "mask size"}
COURSES = ("loss", "loss_heldout", "mpt", "elbo", "lml", "lml_heldout")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reports", description=__doc__)
    files = sorted(path.stem for path in FOLDER.glob("*.json"))
    presets = [name for name in PRESETS if name.startswith(("fig3-", *OWN))]
    parser.add_argument("names", nargs="+", choices=files + presets, metavar="NAME",
                        help=", ".join(files + presets))  # fmt: skip
    for name in parser.parse_args().names:
        specs = specs_of(name)
        began = time.perf_counter()
        runs = [list(run(spec)) for spec in specs]
        seconds = time.perf_counter() - began
        write(name, specs, runs, seconds)
        print(FOLDER / f"{name}.md")


def specs_of(name: str) -> tuple[ExperimentSpec, ...]:
    if name in PRESETS:
        return PRESETS[name].specs
    return (parse_spec((FOLDER / f"{name}.json").read_bytes()),)


def write(
    name: str, specs: Sequence[ExperimentSpec], runs: Sequence[list[Record]], seconds: float
) -> None:
    """The report as Markdown, and its picture."""
    parts = [
        f"# {name}\n",
        f"`python -m benchmarks.reports {name}` took {seconds:.0f} s of "
        f"{machine(specs[0].compute.threads)} {specs[0].compute.precision} here.\n",
        f"![The curves]({name}.png)\n",
        *(_judged(name, runs) if name in PRESETS else ()),
    ]
    plot(name, runs)
    for i, (spec, records) in enumerate(zip(specs, runs, strict=True)):
        if len(specs) > 1:
            parts.append(f"## {i + 1}: {_differing(spec, specs)}\n")
        parts += _of_run(records)
    (FOLDER / f"{name}.md").write_text("\n".join(parts))


def _of_run(records: list[Record]) -> list[str]:
    return [
        *(f"- {r.message}" for r in records if isinstance(r, Log)),
        "",
        *_curves(records),
        *_courses(records),
        "| metric | labels | value | standard error |\n|---|---|---|---|",
        *(_metric(r) for r in records if isinstance(r, Metric)),
        "",
    ]


def _differing(spec: ExperimentSpec, specs: Sequence[ExperimentSpec]) -> str:
    """The fields in which the specs differ, as this one has them."""
    fields = [_flat(one.model_dump(mode="json")) for one in specs]
    own = _flat(spec.model_dump(mode="json"))
    differ = [name for name in own if len({str(one.get(name)) for one in fields}) > 1]
    return ", ".join(f"{name} {own[name]}" for name in differ)


def _flat(value: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Fields by their dotted names."""
    found: dict[str, Any] = {}
    for name, inner in value.items():
        found |= (
            _flat(inner, f"{above}{name}.") if isinstance(inner, dict) else {above + name: inner}
        )
    return found


def _judged(name: str, runs: Sequence[list[Record]]) -> list[str]:
    preset = PRESETS[name]
    verdict: Verdict = preset.verdict([_results(records) for records in runs])
    return [
        f"{preset.statement} **{verdict.verdict.capitalize()}.**\n",
        "| | measured | from | to | outcome | power |\n|---|---|---|---|---|---|",
        *(
            f"| {c.what} | {c.measured:.2f} ± {c.half_width:.2g} | {c.low:g} | {c.high:g} | "
            f"{c.outcome} | {c.power:.0%} |"
            for c in verdict.comparisons
        ),
        "",
    ]


def _results(records: list[Record]) -> Results:
    lines = (json.loads(encode(i, record)) for i, record in enumerate(records))
    return Results.of_records(lines)


def _metric(one: Metric) -> str:
    value = (
        ""
        if one.value is None
        else f"{one.value:.4g}"
        if abs(one.value) < 1
        else f"{one.value:.2f}"
    )
    error = one.reason or "" if one.std_err is None else f"{one.std_err:.2g}"
    return f"| {one.name} | {_said(one.labels)} | {value} | {error} |"


def _said(labels: Labels) -> str:
    return ", ".join(f"{name} {value}" for name, value in labels.items())


def _series(records: Iterable[Record], name: str) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for record in records:
        if isinstance(record, Point) and record.series == name:
            found.setdefault(_said(record.labels), []).append(record)
    return found


def _curves(records: list[Record]) -> list[str]:
    lines = []
    for series, axis in CURVES.items():
        curves = _series(records, series)
        if not curves:
            continue
        places = [point.x for point in next(iter(curves.values()))]
        shown = sorted({round(i * (len(places) - 1) / (SHOWN - 1)) for i in range(SHOWN)})
        lines.append(f"| score at {axis} | {' | '.join(f'{places[i]:g}' for i in shown)} |")
        lines.append("|---" * (len(shown) + 1) + "|")
        for labels, points in curves.items():
            cells = " | ".join(_cell(points[i]) for i in shown)
            lines.append(f"| {labels} | {cells} |")
    return [*lines, ""]


def _cell(point: Point) -> str:
    error = "" if point.std_err is None else f" ± {point.std_err:.2g}"
    return f"{point.value:.3g}{error}"


def _courses(records: list[Record]) -> list[str]:
    """Each series of the training, at some of its steps."""
    lines = []
    for name in COURSES:
        for labels, points in _series(records, name).items():
            last = len(points) - 1
            shown = [points[i] for i in sorted({round(k * last / SHOWN) for k in range(SHOWN + 1)})]
            cells = ", ".join(f"{point.x:g}: {point.value:.2f}" for point in shown)
            lines.append(f"- {name} ({labels}) by step: {cells}")
    return [*lines, ""]


def plot(name: str, runs: Sequence[list[Record]]) -> None:
    """A row for each run: the curves and, if recorded, the log marginal likelihood by epoch, of
    held-out observations if there are any."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [series for series in (*CURVES, *_lml_of(runs[0])) if _is_curve(runs[0], series)]
    size = (6 * len(panels), 4 * len(runs))
    figure: Any
    figure, grid = pyplot.subplots(
        len(runs), len(panels), figsize=size, layout="constrained", squeeze=False
    )
    for row, records in zip(grid, runs, strict=True):
        for axes, series in zip(row, panels, strict=True):
            _panel(axes, series, records)
    figure.savefig(FOLDER / f"{name}.png", dpi=110)


def _is_curve(records: list[Record], series: str) -> bool:
    """Return whether the series has more than one point."""
    return any(len(points) > 1 for points in _series(records, series).values())


def _lml_of(records: list[Record]) -> list[str]:
    return ["lml_heldout" if _series(records, "lml_heldout") else "lml"]


def _panel(axes: Any, series: str, records: list[Record]) -> None:
    for labels, points in _series(records, series).items():
        places, values = [p.x for p in points], [p.value or 0 for p in points]
        errors = [2 * (p.std_err or 0) for p in points]
        axes.errorbar(places, values, errors, label=labels, linewidth=1, elinewidth=0.6)
    if series in CURVES:
        axes.set(xlabel=CURVES[series], ylabel="mean log probability when masked (nats)")
    else:
        axes.set(xlabel="epoch", ylabel=f"{series} (nats)")
    axes.legend(fontsize=7)


if __name__ == "__main__":
    main()
