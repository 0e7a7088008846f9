"""From a spec to its records."""

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, assert_never

import torch

from mptcore.families.linear_gaussian.run import VectorRun
from mptcore.families.vae.run import LatentRun
from mptcore.protocol.records import Log, Record, RunError, with_progress
from mptcore.runtime.session import Session, TrainingState
from mptcore.specs import (
    ExperimentSpec,
    LatentExperiment,
    Machine,
    TextExperiment,
    VectorExperiment,
)

if TYPE_CHECKING:
    from mptcore.families.masked_lm.run import TextRun


def run(spec: ExperimentSpec) -> Iterator[Record]:
    """All records of an experiment, in order. Raises RunError where it cannot go on."""
    session = Session()
    for record in resumable(spec, session):
        if record is not None:
            session.seq += 1
            yield record


def resumable(
    spec: ExperimentSpec, session: Session, resumed: TrainingState | None = None
) -> Iterator[Record | None]:
    """The same with a None between records wherever the run rests: where session.at_rest is true it
    may be saved there. The caller raises session.seq with every record."""
    torch.set_num_threads(spec.compute.threads)
    device, dtype = _device(spec.compute), getattr(torch, spec.compute.precision)
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    yield Log(
        "info",
        f"torch {torch.__version__} on {place}, {spec.compute.precision}, "
        f"{torch.get_num_threads()} threads",
    )
    work = _work(spec, session, device, dtype)
    yield from with_progress(work.records(resumed), lambda: work.total, "masks")


def _work(
    spec: ExperimentSpec, session: Session, device: torch.device, dtype: torch.dtype
) -> "VectorRun | LatentRun | TextRun":
    match spec:
        case VectorExperiment():
            return VectorRun(spec, session, device, dtype)
        case LatentExperiment():
            return LatentRun(spec, session, device, dtype)
        case TextExperiment():
            # transformers takes seconds to import
            text = importlib.import_module("mptcore.families.masked_lm.run")
            work: TextRun = text.TextRun(spec, session, device, dtype)
            return work
        case _:
            assert_never(spec)


def _device(compute: Machine) -> torch.device:
    available = torch.cuda.is_available()
    if compute.device == "cuda" and not available:
        raise RunError(
            "invalid", "compute.device is cuda and this machine has none: use auto or cpu"
        )
    return torch.device("cuda" if available and compute.device != "cpu" else "cpu")
