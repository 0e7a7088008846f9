"""`python -m benchmarks.reports NAME …` runs benchmarks/reports/NAME.json and writes NAME.md and
NAME.png beside it: what ran, on what machine, every metric, and the curve at some rates.

The texts and checkpoints come from MPT_DATA_DIR and MPT_MODELS_DIR.
"""

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.table import machine
from mptcore.records import Labels, Log, Metric, Point, Record
from mptcore.run import run
from mptcore.specs import ExperimentSpec, parse_spec

FOLDER = Path(__file__).parent / "reports"
SHOWN = 9
"""Rates in the table of a curve."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reports", description=__doc__)
    parser.add_argument("names", nargs="+", choices=sorted(p.stem for p in FOLDER.glob("*.json")))
    for name in parser.parse_args().names:
        spec = parse_spec((FOLDER / f"{name}.json").read_bytes())
        began = time.perf_counter()
        records = list(run(spec))
        seconds = time.perf_counter() - began
        (FOLDER / f"{name}.md").write_text(report(name, spec, records, seconds))
        plot(name, records)
        print(FOLDER / f"{name}.md")


def report(name: str, spec: ExperimentSpec, records: list[Record], seconds: float) -> str:
    """The report as Markdown."""
    parts = [
        f"# {name}\n",
        f"`python -m benchmarks.reports {name}` took {seconds:.0f} s of "
        f"{machine(spec.compute.threads)} {spec.compute.precision} here.\n",
        *(f"- {r.message}" for r in records if isinstance(r, Log)),
        "",
        f"![The curves]({name}.png)\n",
        *_curves(records),
        *_training(records),
        "| metric | labels | value | standard error |\n|---|---|---|---|",
        *(_metric(r) for r in records if isinstance(r, Metric)),
        "",
    ]
    return "\n".join(parts)


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
    curves = _series(records, "score_by_rate")
    rates = [point.x for point in next(iter(curves.values()))]
    places = sorted({round(i * (len(rates) - 1) / (SHOWN - 1)) for i in range(SHOWN)})
    head = " | ".join(f"{rates[i]:g}" for i in places)
    lines = [f"| score at rate | {head} |", "|---" * (len(places) + 1) + "|"]
    for labels, points in curves.items():
        cells = " | ".join(f"{points[i].value:.2f} ± {points[i].std_err:.2f}" for i in places)
        lines.append(f"| {labels} | {cells} |")
    return [*lines, ""]


def _training(records: list[Record]) -> list[str]:
    lines = []
    for name in ("loss", "loss_heldout"):
        for labels, points in _series(records, name).items():
            cells = ", ".join(f"{point.x:g}: {point.value:.2f}" for point in points)
            lines.append(f"- {name} ({labels}) by step: {cells}")
    return [*lines, ""]


def plot(name: str, records: list[Record]) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure: Any
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for labels, points in _series(records, "score_by_rate").items():
        rates, values = [p.x for p in points], [p.value or 0 for p in points]
        errors = [2 * (p.std_err or 0) for p in points]
        axes.errorbar(rates, values, errors, label=labels, linewidth=1, elinewidth=0.6)
    axes.set(xlabel="masking rate", ylabel="mean log probability of a masked token (nats)")
    axes.legend(fontsize=7)
    figure.savefig(FOLDER / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
