"""Trained weights as a file: what an experiment keeps and a later one starts from.

The header says which family of models the tensors are of; what else it says is the family's own.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mptcore.protocol.records import Artifact, Log, RunError

FILE = "weights.safetensors"
MEDIA_TYPE = "application/octet-stream"
HEADER = "mptcore"
"""The key of the header in the file's metadata: JSON, with the family."""


def keep_weights(
    family: str, tensors: Mapping[str, Tensor], header: Mapping[str, str], folder: Path | None
) -> Artifact | Log:
    """Write tensors and their header under `folder`, where there is one."""
    if folder is None:
        return Log("info", "the weights are not kept: no work directory was given")
    # One key: safetensors writes several in any order, and the same weights have the same digest.
    metadata = {HEADER: json.dumps({**header, "family": family}, sort_keys=True)}
    content = save({name: value.cpu().contiguous() for name, value in tensors.items()}, metadata)
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / FILE, content)
    return Artifact(FILE, MEDIA_TYPE, hashlib.sha256(content).hexdigest())


def load_weights(family: str, experiment: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors that an experiment kept, and their header. Raises RunError where it kept none of
    this family."""
    try:
        with safe_open(_file_of(experiment), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            text = (file.metadata() or {}).get(HEADER)
    except (OSError, SafetensorError) as error:
        raise _refusal(experiment, "has no weights: name a training run that succeeded") from error
    if text is None:
        raise _refusal(experiment, "kept its weights in a form of an earlier version: train again")
    header: dict[str, str] = json.loads(text)
    if header["family"] != family:
        raise _refusal(experiment, f"trained a model of another family, {header['family']}")
    return tensors, header


def weights_digest(experiment: str) -> str:
    """The SHA-256 of the weights that an experiment kept."""
    return hashlib.sha256(_file_of(experiment).read_bytes()).hexdigest()


def _file_of(experiment: str) -> Path:
    store = os.environ.get("MPT_STORE")
    if not store:
        raise RunError("invalid", "MPT_STORE, the folder that holds kept weights, is not set")
    return Path(store, "artifacts", experiment, FILE)


def _refusal(experiment: str, detail: str) -> RunError:
    return RunError("invalid", f"experiment {experiment} {detail}")


def write_durably(path: Path, content: bytes) -> None:
    """Write the content whole or not at all, to a temporary file that is then renamed; it is on
    disk when this returns."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
