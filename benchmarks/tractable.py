"""PPCA: scores, standard errors and training against the direct route."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import torch

from benchmarks import direct
from benchmarks.table import Benchmark, Row, SkippedError
from mptcore.data.dataset import Dataset, load_arrays
from mptcore.estimation.masks import draw_masks
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.routes import solver_for
from mptcore.presets import PRESETS
from mptcore.protocol.records import Metric
from mptcore.run import run
from mptcore.specs import AllSizes, LinearGaussianExperiment, MaskEvaluation

MEASURED_S = 2.0
"""Seconds for which a short run is repeated."""
PART = 20
"""Baselines that would be long are timed on every PART-th of their masks: 5 %."""


def table1(threads: int) -> Iterator[Row]:
    """The same masks and the same numbers as the direct route. The moment of the published data has
    a low rank; the other row shows the cost of full rank."""
    for noise, goal in (("shared", 450), ("isotropic", 100)):
        spec = generated(1000, 200, 5, noise, threads, {"schedule": "all", "per_size": 100})
        what = f"table1, P = 100, {noise} noise"
        yield _scores_row("table1", what, spec, 100, goal)


def wide(threads: int) -> Iterator[Row]:
    for noise, goal in (("shared", 400), ("isotropic", 150)):
        spec = generated(1000, 512, 2, noise, threads, {"schedule": "all", "per_size": 10})
        what = f"D = 512, K = 2, N = 1000, P = 10, {noise} noise"
        yield _scores_row("wide", what, spec, 10, goal)


def mnist(threads: int) -> Iterator[Row]:
    if not os.environ.get("MPT_DATA_DIR"):
        raise SkippedError("mnist: MPT_DATA_DIR is not set")
    times = {}
    for n in (1000, 60_000):
        spec = _spec(
            {"family": "ppca", "latent_dim": 50, "init": "maximum_likelihood"},
            {"source": "mnist", "n": n},
            threads,
            {"schedule": "all", "per_size": 8, "design": "balanced"},
        )
        times[n] = time_of(spec)[0]
    ratio = times[60_000] / times[1000]
    work = "MNIST, D = 784, K = 50, balanced, P = 8, N = 60,000, all included"
    met = ratio <= 1.5 and times[60_000] < 60
    against = f"the same with N = 1,000: {times[1000]:.3g} s"
    yield Row("mnist", work, times[60_000], against, ratio, "at most 1.5, and 60 s", met)


def target(threads: int) -> Iterator[Row]:
    """A standard error of 0.03 nats against equally many independent masks of each size."""
    per_size = {"schedule": "all", "per_size": 100}
    spec = generated(1000, 200, 5, "shared", threads, per_size)
    _, metrics = time_of(spec)
    needed = 100 * (metrics["mpt"][1] / 0.03) ** 2
    form, timed, _ = _direct_part(spec, 100)
    per_mask = timed / _masks_timed(spec, 100)
    wanted = spec.model_copy(update={"evaluate": MaskEvaluation(target_std_err=0.03)})
    seconds, reached = _fastest(wanted)
    baseline = per_mask * 200 * needed
    remark = f"{reached['masks'][0]:.0f} masks, reached {reached['mpt'][1]:.4f}"
    against = (
        f"direct ({form}), P = {needed:.0f} for every size, from 5 % of table1's masks: "
        f"{baseline:.3g} s"
    )
    ratio = baseline / seconds
    work = "standard error 0.03 on table1's sum"
    yield Row("target", work, seconds, against, ratio, "900", ratio >= 900, remark)


def fig2(threads: int) -> Iterator[Row]:
    work = "fig2-left, five starts, 1000 epochs"
    yield _training_row("fig2", work, _preset("fig2-left", threads), 20, 1, 120)


def fig5(threads: int) -> Iterator[Row]:
    work = "fig5-left, five starts, 600 epochs, P = 20"
    yield _training_row("fig5", work, _preset("fig5-left", threads), 6, 20, 1200)


def very_wide(threads: int) -> Iterator[Row]:
    """In a process of its own, whose memory is then known."""
    for noise in ("isotropic", "shared"):
        spec = generated(5000, 4096, 10, noise, threads, {"schedule": "all", "per_size": 1})
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "mptcore"],
            input=spec.model_dump_json().encode(),
            stdout=subprocess.DEVNULL,
            check=True,
        )
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        work = (
            f"D = 4096, K = 10, N = 5000, all sizes, P = 1, {noise} noise, data and start included"
        )
        met = seconds < 60 and peak < 4
        remark = f"peak {peak:.2f} GiB"
        yield Row("very-wide", work, seconds, "", None, "60 s and 4 GiB", met, remark)


BENCHMARKS: dict[str, Benchmark] = {
    "table1": table1,
    "wide": wide,
    "mnist": mnist,
    "target": target,
    "fig2": fig2,
    "fig5": fig5,
    "very-wide": very_wide,
}


def _scores_row(
    name: str, work: str, spec: LinearGaussianExperiment, per_size: int, goal: float | None
) -> Row:
    """The whole curve against the direct route on 5 % of the masks, and how far both differ."""
    seconds, _ = _fastest(spec)
    form, timed, difference = _direct_part(spec, per_size)
    part = _masks_timed(spec, per_size)
    baseline = timed * spec.mask_count() / part
    against = f"direct ({form}), {part} of {spec.mask_count()} masks: {baseline:.3g} s"
    ratio = baseline / seconds
    remark = f"largest difference of a mask's score {difference:.1g}"
    met = (goal is None or ratio >= goal) and difference < 1e-8
    return Row(name, work, seconds, against, ratio, "" if goal is None else f"{goal}", met, remark)


def _direct_part(spec: LinearGaussianExperiment, per_size: int) -> tuple[direct.Form, float, float]:
    """The direct route's quickest form on part of the masks, its seconds, and the largest
    difference of its scores in float64 to ours."""
    dataset = _data(spec)
    assert dataset.parameters is not None
    density = LowRankGaussian(**dataset.parameters)
    masks = torch.cat([batch.masks for batch in _draw(spec, per_size)])[::PART]

    def scores(form: direct.Form) -> tuple[float, torch.Tensor]:
        variance = density.noise_variance[0].item()
        return direct.scores(form, dataset.x, density.loadings, variance, masks)

    form, seconds = direct.quickest(lambda form: scores(form)[0], spec.compute.threads)
    exact = scores(direct.Form(direct.by_solving, torch.float64, 1))[1]
    model = solver_for(density, dataset.x, torch.device("cpu"))
    ours = torch.cat([model.scores(part) for part in torch.split(masks, 100)])
    return form, seconds, (ours - exact).abs().max().item()


def _draw(spec: LinearGaussianExperiment, per_size: int) -> Any:
    generator = torch.Generator().manual_seed(spec.seeds[0])
    return draw_masks(AllSizes(per_size=per_size), spec.data.dim, generator, 1000)


def _masks_timed(spec: LinearGaussianExperiment, per_size: int) -> int:
    return -(-spec.data.dim * per_size // PART)


def _training_row(
    name: str, work: str, spec: LinearGaussianExperiment, epochs: int, per_size: int, goal: float
) -> Row:
    """Compare with the direct route for each start, over a number of epochs of one start with P =
    1."""
    assert spec.train is not None
    bare = spec.model_copy(
        update={"train": spec.train.model_copy(update={"curve_at": ()}), "baseline": None}
    )
    seconds, _ = _fastest(bare)
    x = _data(spec).x
    form, timed = direct.quickest(
        lambda form: direct.time_to_train(form, x, 2, 0.2, epochs), spec.compute.threads
    )
    baseline = timed * spec.train.epochs / epochs * per_size * len(spec.seeds)
    ratio = baseline / seconds
    against = f"direct ({form}), start by start, from {epochs} epochs of one with P = 1: "
    return Row(name, work, seconds, f"{against}{baseline:.3g} s", ratio, f"{goal:g}", ratio >= goal)


def _fastest(spec: LinearGaussianExperiment) -> tuple[float, dict[str, tuple[float, float]]]:
    """Return the fastest run of those that take MEASURED_S in total, and at least four. Three
    passes of a baseline take as long: with fewer runs, ours would not meet the moments in which
    the machine is quick."""
    runs = [time_of(spec)]
    while len(runs) < 4 or sum(seconds for seconds, _ in runs) < MEASURED_S:
        runs.append(time_of(spec))
    return min(runs, key=itemgetter(0))


def time_of(spec: LinearGaussianExperiment) -> tuple[float, dict[str, tuple[float, float]]]:
    """Seconds of a whole run, data included, and its metrics."""
    start = time.perf_counter()
    records = list(run(spec))
    seconds = time.perf_counter() - start
    metrics = {r.name: (r.value or 0.0, r.std_err or 0.0) for r in records if isinstance(r, Metric)}
    return seconds, metrics


def generated(
    n: int, dim: int, latent_dim: int, noise: str, threads: int, masks: dict[str, Any]
) -> LinearGaussianExperiment:
    common = {"latent_dim": latent_dim, "noise_precision": 5.0}
    model = {"family": "ppca", "init": "generator", **common}
    source = {"source": "ppca", "n": n, "dim": dim, "noise": noise, "seed": 1991, **common}
    return _spec(model, source, threads, masks)


def _spec(
    model: dict[str, Any], source: dict[str, Any], threads: int, masks: dict[str, Any]
) -> LinearGaussianExperiment:
    spec = {
        "model": model,
        "data": source,
        "evaluate": {"masks": masks},
        "seeds": [4],
        "compute": {"threads": threads, "device": "cpu"},
    }
    return LinearGaussianExperiment.model_validate(spec)


def _on(spec: LinearGaussianExperiment, threads: int) -> LinearGaussianExperiment:
    return spec.model_copy(
        update={"compute": spec.compute.model_copy(update={"threads": threads, "device": "cpu"})}
    )


def _preset(name: str, threads: int) -> LinearGaussianExperiment:
    spec = PRESETS[name].specs[0]
    assert isinstance(spec, LinearGaussianExperiment)
    return _on(spec, threads)


def _data(spec: LinearGaussianExperiment) -> Dataset:
    assert isinstance(spec.data.seed, int)
    seed = spec.data.seed
    return load_arrays(spec.data, seed, torch.Generator().manual_seed(seed))
