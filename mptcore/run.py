"""From a spec to its records."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mptcore import data
from mptcore.evaluate import Evaluation, Work
from mptcore.models import TractableModel, build
from mptcore.records import Log, Record, RunError, with_progress
from mptcore.specs import Compute, ExperimentSpec


@dataclass(frozen=True)
class _SeedRun:
    """One seed's models and the stream its masks are drawn from."""

    seed: int
    models: dict[str, TractableModel]
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


def _evaluate(spec: ExperimentSpec, device: torch.device, dtype: torch.dtype) -> Work:
    done = 0
    for one in _seed_runs(spec, device, dtype):
        before = done
        evaluation = Evaluation(
            spec.evaluate, one.models, {"seed": one.seed}, spec.compute.memory_bytes
        )
        for of_this, record in evaluation.records(one.masks):
            done = before + of_this
            yield done, record


def _seed_runs(
    spec: ExperimentSpec, device: torch.device, dtype: torch.dtype
) -> Iterator[_SeedRun]:
    """Models for each seed. Data and models are made once where no seed changes them."""
    models = {"model": spec.model} | ({"baseline": spec.baseline} if spec.baseline else {})
    shared_data = None
    shared: dict[str, TractableModel] = {}
    for seed in spec.seeds:
        masks = torch.Generator().manual_seed(seed)
        if spec.data.seed == "run":  # the published order: the data, then the masks, one stream
            dataset = data.load(spec.data, masks)
        else:
            stream = torch.Generator().manual_seed(spec.data.seed or 0)
            dataset = shared_data = shared_data or data.load(spec.data, stream)
        for name, model in models.items():
            if name not in shared or spec.data.seed == "run" or model.init == "random":
                shared[name] = build(model, dataset, _stream(seed, "init"), device, dtype)
        yield _SeedRun(seed, dict(shared), masks)


def _stream(seed: int, purpose: str) -> torch.Generator:
    """A stream of random numbers of its own for a purpose, so that no other draw moves it."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


def _device(compute: Compute) -> torch.device:
    available = torch.cuda.is_available()
    if compute.device == "cuda" and not available:
        raise RunError(
            "invalid", "compute.device is cuda and this machine has none: use auto or cpu"
        )
    return torch.device("cuda" if available and compute.device != "cpu" else "cpu")
