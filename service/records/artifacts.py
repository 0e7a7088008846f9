"""Files left by runs. Only recorded files are served."""

import hashlib
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path

from service.experiments.models import Artifact
from service.refusals import ApiError
from service.settings import Settings


def file_of(settings: Settings, artifact: Artifact) -> Path:
    """Return the path of an artifact, which may be gone."""
    return settings.artifacts(artifact.experiment_id, artifact.attempt) / artifact.file


def whole_file(settings: Settings, artifact: Artifact) -> Path:
    """Return the path of an artifact after checking its content. Raises ApiError if it is missing
    or was changed."""
    path = file_of(settings, artifact)
    try:
        state = path.stat()
        found = _digest(path, state.st_ino, state.st_size, state.st_mtime_ns)
    except OSError as error:
        detail = f"{artifact.file} cannot be read from the store: {error.strerror}"
        raise ApiError(HTTPStatus.GONE, "artifact_missing", detail) from error
    if found != artifact.sha256:
        detail = f"{artifact.file} in the store was changed since the run: its SHA-256 differs"
        raise ApiError(HTTPStatus.GONE, "artifact_broken", detail)
    return path


@lru_cache(maxsize=1000)
def _digest(path: Path, inode: int, size: int, modified_ns: int) -> str:
    """Return the SHA-256 of a file in this state."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
