"""Trained weights as a file: what an experiment keeps and a later one starts from."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mptcore.families.linear_gaussian.gaussian import LowRankGaussian
from mptcore.protocol.records import Artifact, RunError
from mptcore.specs.families.linear_gaussian.models import LinearGaussian

FILE = "weights.safetensors"
MEDIA_TYPE = "application/octet-stream"
PARTS = ("loadings", "mean", "noise_variance")


def keep(densities: Mapping[int, LowRankGaussian], folder: Path) -> Artifact:
    """Write the weights of each seed under `folder`: tensors named SEED/loadings and so on."""
    tensors: dict[str, Tensor] = {
        f"{seed}/{part}": getattr(density, part).double()
        for seed, density in densities.items()
        for part in PARTS
    }
    return keep_tensors(tensors, {"seeds": ",".join(map(str, densities))}, folder)


def keep_tensors(tensors: Mapping[str, Tensor], said: dict[str, str], folder: Path) -> Artifact:
    """Write tensors, and what is said of them, under `folder`."""
    content = save({name: value.cpu().contiguous() for name, value in tensors.items()}, said)
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / FILE, content)
    return Artifact(FILE, MEDIA_TYPE, hashlib.sha256(content).hexdigest())


def kept_digest(experiment: str) -> str:
    """The SHA-256 of the weights that an experiment kept."""
    return hashlib.sha256(_kept_file(experiment).read_bytes()).hexdigest()


def _kept_file(experiment: str) -> Path:
    store = os.environ.get("MPT_STORE")
    if not store:
        raise RunError("invalid", "MPT_STORE, the folder that holds kept weights, is not set")
    return Path(store, "artifacts", experiment, FILE)


def load_kept(experiment: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors that an experiment kept, and what it said of them. Raises RunError."""
    path = _kept_file(experiment)
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()
    except (OSError, SafetensorError) as error:
        detail = "has no weights: name a training run that succeeded"
        raise RunError("invalid", f"experiment {experiment} {detail}") from error


def weights_of(spec: LinearGaussian, dim: int, seed: int) -> LowRankGaussian:
    """The weights that spec.experiment kept, for a seed: its own, or the first one's. Raises
    RunError where there are none that fit."""
    tensors, said = load_kept(str(spec.experiment))
    if "seeds" not in said:
        detail = "trained a model of another family"
        raise RunError("invalid", f"experiment {spec.experiment} {detail}")
    first = int(said["seeds"].split(",")[0])
    seeds = [int(name.split("/")[0]) for name in tensors]
    chosen = seed if seed in seeds else first
    density = LowRankGaussian(*(tensors[f"{chosen}/{part}"] for part in PARTS))
    shape = (density.dim, density.loadings.shape[1])
    if shape != (dim, spec.latent_dim):
        detail = f"has weights for D = {shape[0]}, K = {shape[1]}; this spec has D = {dim}, K = "
        raise RunError("invalid", f"experiment {spec.experiment} {detail}{spec.latent_dim}")
    noise = density.noise_variance
    if spec.family == "ppca" and (noise - noise[0]).abs().max() > 1e-12 * noise[0]:
        detail = "has a noise variance for each dimension: use family factor_analysis"
        raise RunError("invalid", f"experiment {spec.experiment} {detail}")
    return density


def write_durably(path: Path, content: bytes) -> None:
    """All of the content or nothing, kept when this returns: written aside, then renamed."""
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
