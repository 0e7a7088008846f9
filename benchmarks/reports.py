"""`python -m benchmarks.reports NAME …` runs benchmarks/reports/NAME.json, or the preset NAME of
Fig. 3, and writes NAME.md and NAME.png to benchmarks/reports: what ran, on what machine, every
metric, the curves at some places, and a preset's verdict.

The data, texts and checkpoints come from MPT_DATA_DIR and MPT_MODELS_DIR.
"""

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.table import machine
from mptcore.presets import PRESETS, Results, Verdict
from mptcore.protocol.records import Labels, Log, Metric, Point, Record, encode
from mptcore.run import run
from mptcore.specs import ExperimentSpec, parse_spec

FOLDER = Path(__file__).parent / "reports"
SHOWN = 9
"""Places in the table of a curve."""
CURVES = {"score_by_rate": "masking rate", "score": "mask size"}
COURSES = ("loss", "loss_heldout", "mpt", "elbo", "lml", "lml_heldout")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reports", description=__doc__)
    files = sorted(path.stem for path in FOLDER.glob("*.json"))
    presets = [name for name in PRESETS if name.startswith("fig3-")]
    parser.add_argument("names", nargs="+", choices=files + presets, metavar="NAME",
                        help=", ".join(files + presets))  # fmt: skip
    for name in parser.parse_args().names:
        spec = spec_of(name)
        began = time.perf_counter()
        records = list(run(spec))
        seconds = time.perf_counter() - began
        (FOLDER / f"{name}.md").write_text(report(name, spec, records, seconds))
        plot(name, records)
        print(FOLDER / f"{name}.md")


def spec_of(name: str) -> ExperimentSpec:
    if name in PRESETS:
        (spec,) = PRESETS[name].specs
        return spec
    return parse_spec((FOLDER / f"{name}.json").read_bytes())


def report(name: str, spec: ExperimentSpec, records: list[Record], seconds: float) -> str:
    """The report as Markdown."""
    parts = [
        f"# {name}\n",
        f"`python -m benchmarks.reports {name}` took {seconds:.0f} s of "
        f"{machine(spec.compute.threads)} {spec.compute.precision} here.\n",
        *(f"- {r.message}" for r in records if isinstance(r, Log)),
        "",
        f"![The curves]({name}.png)\n",
        *(_judged(name, records) if name in PRESETS else ()),
        *_curves(records),
        *_courses(records),
        "| metric | labels | value | standard error |\n|---|---|---|---|",
        *(_metric(r) for r in records if isinstance(r, Metric)),
        "",
    ]
    return "\n".join(parts)


def _judged(name: str, records: list[Record]) -> list[str]:
    preset = PRESETS[name]
    lines = (json.loads(encode(i, record)) for i, record in enumerate(records))
    verdict: Verdict = preset.verdict([Results.of_records(lines)])
    return [
        f"{preset.statement} **{verdict.verdict.capitalize()}.**\n",
        "| | measured | from | to | agrees |\n|---|---|---|---|---|",
        *(
            f"| {c.what} | {c.measured:.2f} | {c.low:g} | {c.high:g} | "
            f"{'yes' if c.agrees else 'NO'} |"
            for c in verdict.comparisons
        ),
        "",
    ]


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


def plot(name: str, records: list[Record]) -> None:
    """The curves, and beside them the log marginal likelihood by epoch where it was recorded."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [series for series in (*CURVES, "lml") if _series(records, series)]
    figure: Any
    figure, grid = pyplot.subplots(
        1, len(panels), figsize=(6 * len(panels), 4), layout="constrained", squeeze=False
    )
    for axes, series in zip(grid[0], panels, strict=True):
        for labels, points in _series(records, series).items():
            places, values = [p.x for p in points], [p.value or 0 for p in points]
            errors = [2 * (p.std_err or 0) for p in points]
            axes.errorbar(places, values, errors, label=labels, linewidth=1, elinewidth=0.6)
        if series == "lml":
            axes.set(xlabel="epoch", ylabel="log marginal likelihood (nats)")
        else:
            axes.set(xlabel=CURVES[series], ylabel="mean log probability when masked (nats)")
        axes.legend(fontsize=7)
    figure.savefig(FOLDER / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
