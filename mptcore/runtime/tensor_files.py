"""Trained weights as a file: saved by one experiment and loaded by later ones.

The header names the family of the model; other entries are defined by the family.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mptcore.protocol.records import Artifact, Log, RunError
from mptcore.runtime.artifacts import keep
from mptcore.runtime.inputs import InputError, digest, input_file

FILE = "weights.safetensors"
MEDIA_TYPE = "application/octet-stream"
HEADER = "mptcore"
"""Key of the header in the file's metadata. The header is JSON and includes the family."""


def keep_weights(
    family: str, tensors: Mapping[str, Tensor], header: Mapping[str, str], folder: Path | None
) -> Artifact | Log:
    """Write tensors and their header under `folder`, if there is one."""
    if folder is None:
        return Log("info", "the weights are not kept: no work directory was given")
    # One key: safetensors writes several in any order, and the same weights have the same digest.
    metadata = {HEADER: json.dumps({**header, "family": family}, sort_keys=True)}
    content = save({name: value.cpu().contiguous() for name, value in tensors.items()}, metadata)
    return keep(folder, FILE, MEDIA_TYPE, lambda: [content])


def load_weights(family: str, experiment: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors that an experiment saved, and their header. Raises RunError if it saved
    none of this family."""
    try:
        with safe_open(_file_of(experiment), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            text = (file.metadata() or {}).get(HEADER)
    except (OSError, SafetensorError) as error:
        raise _refusal(experiment, "has no weights: name a training run that succeeded") from error
    if text is None:
        raise _refusal(experiment, "has weights in the format of an earlier version: train again")
    header: dict[str, str] = json.loads(text)
    if header["family"] != family:
        raise _refusal(experiment, f"trained a model of another family, {header['family']}")
    return tensors, header


def weights_digest(experiment: str) -> str:
    """Return the SHA-256 of the weights that an experiment saved. Raises RunError."""
    return digest(_file_of(experiment))


def _file_of(experiment: str) -> Path:
    try:
        return input_file(experiment, f"artifacts/{experiment}/**/{FILE}")
    except InputError as error:
        raise _refusal(experiment, f"has no weights that can be used: {error}") from error


def _refusal(experiment: str, detail: str) -> RunError:
    return RunError("invalid", f"experiment {experiment} {detail}")
