"""Save the state of a run to a directory, and load it again.

One file holds everything: tensors as safetensors, the rest in its header. Its name ends with the
first digits of its SHA-256, so that a damaged file is detected and the previous one is used."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mptcore.protocol.records import Checkpoint
from mptcore.runtime.durable import rename_durably
from mptcore.runtime.state import MaskPlan, RunState, TrainingState
from mptcore.specs import ExperimentSpec

KEPT = 2
FORMAT = "6"
"""Format version of a checkpoint file. A run that finds another version starts again from its first
record."""


@dataclass(frozen=True)
class Resumed:
    """A saved run, with `after` records already emitted."""

    after: int
    masks: int
    """Number of masks scored so far."""
    scores: list[Tensor]
    training: TrainingState | None
    device: str | None
    """Device of the computation; None in older files."""
    memory_was_short: bool = False
    """True if work before the checkpoint was repeated in smaller parts."""


@dataclass(frozen=True)
class Snapshot:
    """Copy of the state at a safe point. The run may continue while it is written."""

    after: int
    """Number of records emitted so far."""
    tensors: Mapping[str, Tensor]
    header: Mapping[str, str]

    @classmethod
    def of(cls, state: RunState, spec: ExperimentSpec) -> "Snapshot":
        tensors, header = _of(state)
        header |= {"format": FORMAT, "spec": spec.model_dump_json(), "after": str(state.seq)}
        header |= {"device": state.device, "masks": str(state.masks)}
        if state.memory_was_short:
            header["memory_was_short"] = "true"
        return cls(state.seq, tensors, header)

    def save(self, folder: Path) -> Checkpoint:
        """Write the snapshot, which may take seconds. Raises OSError and then leaves no file."""
        folder.mkdir(parents=True, exist_ok=True)
        number = 1 + max((_number(path) for path in files(folder)), default=0)
        aside = folder / f"{number:09d}.{os.getpid()}.tmp"
        try:
            save_file(dict(self.tensors), aside, dict(self.header))
            with aside.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            path = folder / f"{number:09d}-{digest[:16]}.safetensors"
            rename_durably(aside, path)
        except (OSError, SafetensorError) as error:  # safetensors has its own error for a full disk
            with suppress(OSError):
                aside.unlink()
            raise OSError(str(error)) from error
        return Checkpoint(path.name, digest, self.after)


def prune(folder: Path) -> None:
    """Delete all checkpoints but the two latest."""
    for old in files(folder)[KEPT:]:
        old.unlink(missing_ok=True)


def _number(path: Path) -> int:
    return int(path.name.split("-")[0])


def first_whole(spec: ExperimentSpec, paths: Iterable[Path]) -> Resumed | None:
    """Return the first of these checkpoints that is intact and belongs to this spec."""
    return next((resumed for path in paths if (resumed := _load(spec, path))), None)


def files(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the latest first."""
    return sorted(folder.glob("*-*.safetensors"), reverse=True)


def _of(state: RunState) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors: dict[str, Tensor] = {}
    header: dict[str, str] = {}
    if state.scores:
        tensors["scores"] = torch.cat([scores.flatten() for scores in state.scores])
        header["shapes"] = json.dumps([scores.shape for scores in state.scores])
    if state.training is not None:
        training = state.training()
        header["training"] = json.dumps([training.epoch, training.seq, training.masks])
        header["plans"] = json.dumps([[plan.max_masks, plan.planned] for plan in training.plans])
        tensors |= {
            f"training/{name}": value.to("cpu", copy=True).contiguous()
            for name, value in training.tensors.items()
        }
    return tensors, header


def _load(spec: ExperimentSpec, path: Path) -> Resumed | None:
    """Return the checkpoint if it is intact and belongs to this spec."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest[:16] != path.stem.split("-")[-1]:
            return None
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError):
        return None
    if header.get("format") != FORMAT or not _is_of(header["spec"], spec):
        return None
    scores: list[Tensor] = []
    if "shapes" in header:
        shapes = json.loads(header["shapes"])
        parts = torch.split(tensors["scores"], [*map(math.prod, shapes)])
        scores = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    training = None
    if "training" in header:
        epoch, seq, masks = json.loads(header["training"])
        plans = tuple(MaskPlan(*plan) for plan in json.loads(header["plans"]))
        training = TrainingState(epoch, seq, masks, plans, under("training/", tensors))
    after, masks = int(header["after"]), int(header["masks"])
    was_short = "memory_was_short" in header
    return Resumed(after, masks, scores, training, header.get("device"), was_short)


def _is_of(text: str, spec: ExperimentSpec) -> bool:
    try:
        return type(spec).model_validate_json(text) == spec
    except ValidationError:
        return False  # of another family, or of a version with other fields


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
