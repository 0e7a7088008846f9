"""Copy checkpoints from folders of this machine into the store of the service that runs on it."""

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from mptlab.config import served_url, store

PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model")
"""Files of a checkpoint that are copied: weights, architecture, tokenizer. Others may hold code."""
MAX_NAME = 60


def is_folder(checkpoint: str) -> bool:
    """Return whether a checkpoint is given by a folder, and not by a name."""
    return checkpoint.startswith((".", "/", "~")) or Path(checkpoint).is_dir()


def taken(folder: Path) -> str:
    """Copy a checkpoint to the service on this machine, under a name with its digest, and return
    the name. Raises ValueError."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    paths = {path for pattern in PATTERNS for path in folder.glob(pattern)}
    files = sorted(path for path in paths if path.is_file())
    if not any(path.suffix == ".safetensors" for path in files):
        cure = "save_pretrained of transformers writes them"
        raise ValueError(f"{folder} has no weights in safetensors: {cure}")
    models = store() / "models"
    if served_url() is None:
        reason = "only `mpt serve` on this machine can use a folder; in a lab, put it into"
        raise ValueError(f"{reason} MPT_MODELS_DIR of the workers, and give its name")
    base = re.sub(r"[^A-Za-z0-9_.-]", "-", folder.resolve().name).lstrip("._-")[:MAX_NAME]
    name = f"{base or 'model'}-{_digest(files)[:12]}"
    if not (models / name).is_dir():
        _copy(files, models, name)
    return name


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _copy(files: list[Path], models: Path, name: str) -> None:
    """Copy the files, so that the folder appears whole or not at all."""
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models, prefix=".") as part:
        whole = Path(part) / name
        whole.mkdir()
        for path in files:
            shutil.copyfile(path, whole / path.name)
        try:
            os.rename(whole, models / name)
        except OSError:  # another command has copied it meanwhile
            if not (models / name).is_dir():
                raise
