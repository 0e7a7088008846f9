"""Compute the records of a spec. This is the only file that knows all families of this project."""

import pkgutil
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, assert_never

import torch

from mptcore.families.linear_gaussian.run import LinearGaussianRun
from mptcore.families.vae.run import VaeRun
from mptcore.protocol.records import Log, Progress, Record, RunError
from mptcore.runtime.cgroups import processors
from mptcore.runtime.compiled import kernels
from mptcore.runtime.device import device_of, dtype_of, name_of, set_arithmetic
from mptcore.runtime.process import keep_freed_memory
from mptcore.runtime.results import with_a_result
from mptcore.runtime.state import ExperimentRun, RunState, TrainingState, with_progress
from mptcore.specs import (
    ExperimentSpec,
    LinearGaussianExperiment,
    MaskedLmExperiment,
    OutsideExperiment,
    VaeExperiment,
)

KERNELS = (
    "mptcore.families.linear_gaussian.kernels.train",
    "mptcore.families.linear_gaussian.kernels.low_rank",
    "mptcore.families.linear_gaussian.kernels.dense",
    "mptcore.estimation.kernels",
)
"""Modules of compiled loops. The first takes longer to compile than the others together."""
MIN_THREADS = 2
"""The default of `compute.threads`, so that its results are the same on a single processor."""


def load_kernels() -> None:
    """Import all compiled loops, and compile those that are not in the cache."""
    for name in KERNELS:
        _load(name)


def compile_kernels() -> None:
    """Compile all loops that are not in the cache, in two processes."""
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(_load, KERNELS))


def _load(name: str) -> None:
    kernels(name)


def implementation(
    spec: ExperimentSpec, state: RunState, device: torch.device, dtype: torch.dtype
) -> ExperimentRun:
    """Return the run that computes a spec, by its family."""
    match spec:
        case LinearGaussianExperiment():
            return LinearGaussianRun(spec, state, device, dtype)
        case VaeExperiment():
            return VaeRun(spec, state, device, dtype)
        case MaskedLmExperiment():
            from mptcore.families.masked_lm.run import MaskedLmRun  # seconds, for transformers

            return MaskedLmRun(spec, state, device, dtype)
        case OutsideExperiment():
            outside_run: ExperimentRun = _outside_run(spec)(spec, state, device, dtype)
            return outside_run
        case _:
            assert_never(spec)


def _outside_run(spec: OutsideExperiment) -> Any:
    """Import the class of the runs of a family from outside. Raises RunError."""
    try:
        return pkgutil.resolve_name(spec.run)
    except Exception as error:
        traceback.print_exc()
        cause = f"{type(error).__name__}: {error}"
        raise RunError("error", f"the run {spec.run} cannot be imported: {cause}") from error


def run(spec: ExperimentSpec) -> Iterator[Record]:
    """Yield all records of an experiment in order. Raises RunError if the experiment fails."""
    state = RunState()
    for record in resumable(spec, state):
        if record is not None:
            state.seq += not isinstance(record, Progress)
            yield record


def resumable(
    spec: ExperimentSpec, state: RunState, resumed: TrainingState | None = None
) -> Iterator[Record | None]:
    """Yield records as `run` does, and None after other work. The run may be
    saved wherever `state.at_safe_point` is true. The caller increments `state.seq` for every
    record except progress records."""
    keep_freed_memory()
    threads = spec.compute.threads
    if threads > MIN_THREADS:
        threads = min(threads, max(MIN_THREADS, processors()))
    torch.set_num_threads(threads)
    device = device_of(spec.device)
    dtype = dtype_of(spec.compute.precision, device)
    trains_network = isinstance(spec, MaskedLmExperiment) and spec.train is not None
    arithmetic = set_arithmetic(device, spec.compute, trains_network)
    state.device, state.precision = name_of(device), str(dtype).removeprefix("torch.")
    asked_for = ""
    if threads < spec.compute.threads:
        asked_for = f" (of {spec.compute.threads} asked for: its worker has no more processors)"
        state.device += f", {threads} threads"
    on_gpu = device.type == "cuda"
    place = state.device if on_gpu else "cpu"
    yield Log(
        "info",
        f"torch {torch.__version__} on {place}, {state.precision}, "
        f"{torch.get_num_threads()} threads{asked_for}{f', {arithmetic}' if on_gpu else ''}",
    )
    experiment = implementation(spec, state, device, dtype)

    state.max_masks = spec.mask_count() or 0

    def total() -> int:
        return state.max_masks - state.left_out(spec.evaluations)

    records = with_progress(experiment.records(resumed), state, total)
    yield from with_a_result(records, _cure(spec, dtype))


def _cure(spec: ExperimentSpec, dtype: torch.dtype) -> str:
    """Return advice for a run in this precision whose results are not finite."""
    advice = "data may be too large or noise too small: rescale or standardize the data"
    if isinstance(spec, MaskedLmExperiment):
        advice = "the checkpoint's weights may be damaged"
    if dtype == torch.float64 or isinstance(spec, LinearGaussianExperiment):
        return advice
    return f"{advice}, or use precision float64"
