"""Cost against D, P and N, as pictures."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot

from benchmarks.tractable import generated, time_of
from mptcore.specs import LinearGaussianExperiment

GRID = {
    "D": (25, 50, 100, 200, 400, 800),
    "P": (1, 3, 10, 30, 100),
    "N": (300, 1000, 3000, 10_000, 30_000, 100_000),
}
AT = {"D": 100, "P": 10, "N": 1000}


def plot(threads: int, folder: Path) -> list[Path]:
    """One picture for each axis: seconds of a whole curve, K = 5."""
    paths = []
    for axis, values in GRID.items():
        figure, axes = pyplot.subplots(figsize=(5, 3.5), layout="constrained")
        for noise, label in (("shared", "published data"), ("isotropic", "isotropic noise")):
            seconds = [_seconds(axis, value, noise, threads) for value in values]
            axes.loglog(values, seconds, marker="o", label=label)
        axes.set_xticks(values, [str(value) for value in values])
        axes.minorticks_off()
        fixed = ", ".join(f"{name} = {AT[name]}" for name in AT if name != axis)
        axes.set(xlabel=axis, ylabel="seconds", title=f"Whole MPT curve, K = 5, {fixed}")
        axes.legend()
        path = folder / f"cost-{axis}.png"
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        paths.append(path)
    return paths


def _seconds(axis: str, value: int, noise: str, threads: int) -> float:
    spec = _spec({**AT, axis: value}, noise, threads)
    return min(time_of(spec)[0] for _ in range(2))


def _spec(at: dict[str, int], noise: str, threads: int) -> LinearGaussianExperiment:
    masks = {"schedule": "all", "per_size": at["P"]}
    return generated(at["N"], at["D"], 5, noise, threads, masks)
