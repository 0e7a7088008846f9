"""From a spec to its records."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mptcore import data
from mptcore.models import TractableModel, build
from mptcore.records import Log, Metric, Point, Record, RunError, with_progress
from mptcore.scores import (
    DEPENDENT,
    ONE_DRAW,
    Estimate,
    SizeScores,
    convergence,
    cumulative_estimate,
    mask_mean,
    score_masks,
    size_estimate,
)
from mptcore.specs import AllSizes, Compute, ExperimentSpec, FixedSize

BATCH_BYTES = 32 * 2**20
"""Memory for the masks that are scored together: about what a processor's caches hold."""


@dataclass(frozen=True)
class _SeedRun:
    """One seed's model and the stream its masks are drawn from."""

    seed: int
    model: TractableModel
    masks: torch.Generator


def run(spec: ExperimentSpec) -> Iterator[Record]:
    """All records of an experiment, in order. Raises RunError where it cannot go on."""
    torch.set_num_threads(spec.compute.threads)
    device, dtype = _device(spec.compute), getattr(torch, spec.compute.precision)
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    yield Log(
        "info",
        f"torch {torch.__version__} on {place}, {spec.compute.precision}, "
        f"{torch.get_num_threads()} threads",
    )
    yield from with_progress(_evaluate(spec, device, dtype), spec.mask_count(), "masks")


def _evaluate(
    spec: ExperimentSpec, device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[int, Record | None]]:
    done = 0
    for one in _seed_runs(spec, device, dtype):
        curve: list[SizeScores] = []
        max_masks = max(1, BATCH_BYTES // one.model.bytes_per_mask)
        for scores in score_masks(one.model, spec.evaluate.masks, one.masks, max_masks):
            done += len(scores.values)
            curve.append(scores)
            estimate = size_estimate(scores, spec.evaluate.masks)
            yield done, _point("score", scores.size, estimate, one.seed)
        for record in _conclusions(spec, one, curve):
            yield done, record


def _seed_runs(
    spec: ExperimentSpec, device: torch.device, dtype: torch.dtype
) -> Iterator[_SeedRun]:
    """A model for each seed. Data and model are made once where no seed changes them."""
    shared_data = None
    shared_model = None
    for seed in spec.seeds:
        masks = torch.Generator().manual_seed(seed)
        if spec.data.seed == "run":  # the published order: the data, then the masks, one stream
            dataset = data.load(spec.data, masks)
        else:
            stream = torch.Generator().manual_seed(spec.data.seed or 0)
            dataset = shared_data = shared_data or data.load(spec.data, stream)
        if shared_model is None or spec.data.seed == "run" or spec.model.init == "random":
            shared_model = build(spec.model, dataset, _stream(seed, "init"), device, dtype)
        yield _SeedRun(seed, shared_model, masks)


def _stream(seed: int, purpose: str) -> torch.Generator:
    """A stream of random numbers of its own for a purpose, so that no other draw moves it."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


def _conclusions(spec: ExperimentSpec, one: _SeedRun, curve: list[SizeScores]) -> Iterator[Record]:
    """What is known once all masks of a seed are scored."""
    lml = one.model.log_marginal_likelihood()
    masks = spec.evaluate.masks
    labels = {"seed": one.seed}
    yield Metric("lml", lml, 0.0, labels)
    match masks:
        case AllSizes():
            factor = 1
            total = cumulative_estimate(curve, masks)
            yield _metric("mpt", total, one.seed)
            yield _metric("difference", total.shifted(-lml), one.seed)
        case FixedSize():
            factor = one.model.dim
            total = size_estimate(curve[0], masks).scaled(factor)
            yield _metric("biased_score", total, one.seed)
            yield _metric("bias", total.shifted(-lml), one.seed)
            assert curve[0].joint is not None, "scored with every fixed size"
            yield _metric("joint_score", mask_mean(curve[0].joint, masks), one.seed)
        case _:
            return
    if spec.evaluate.convergence:
        yield from _convergence(spec, one.seed, curve, factor, lml)


def _convergence(
    spec: ExperimentSpec, seed: int, curve: list[SizeScores], factor: float, lml: float
) -> Iterator[Point]:
    mean, std_err = convergence(curve, spec.evaluate.masks)
    for i, value in enumerate(mean.tolist()):
        error = std_err[i].item() * factor if std_err is not None and i > 0 else None
        reason = None if error is not None else ONE_DRAW if i == 0 else DEPENDENT
        labels = {"seed": seed}
        yield Point("convergence", i + 1, factor * value - lml, error, i + 1, labels, reason)


def _point(series: str, x: float, estimate: Estimate, seed: int) -> Point:
    reason = ONE_DRAW if estimate.std_err is None else None
    labels = {"seed": seed}
    return Point(series, x, estimate.mean, estimate.std_err, estimate.n, labels, reason)


def _metric(name: str, estimate: Estimate, seed: int) -> Metric:
    reason = ONE_DRAW if estimate.std_err is None else None
    return Metric(name, estimate.mean, estimate.std_err, {"seed": seed}, reason)


def _device(compute: Compute) -> torch.device:
    available = torch.cuda.is_available()
    if compute.device == "cuda" and not available:
        raise RunError(
            "invalid", "compute.device is cuda and this machine has none: use auto or cpu"
        )
    return torch.device("cuda" if available and compute.device != "cpu" else "cpu")
