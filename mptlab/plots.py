"""Figures of curves, as files."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt


def mpt_curve(series: list[dict[str, Any]], title: str, file: Path) -> None:
    """S(m) against the mask size for each series, with bands of two standard errors."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for one in series:
        label = ", ".join(f"{key} {value}" for key, value in one["labels"].items())
        (line,) = axes.plot(one["x"], one["value"], linewidth=1, label=label)
        if None not in one["std_err"]:
            pairs = list(zip(one["value"], one["std_err"], strict=True))
            low, high = [v - 2 * e for v, e in pairs], [v + 2 * e for v, e in pairs]
            axes.fill_between(one["x"], low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(title=title, xlabel="mask size m", ylabel="score S(m), nats")
    axes.legend(frameon=False)
    figure.savefig(file, dpi=150)
    plt.close(figure)
