"""Files to upload, and files that uploads leave."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient

from service.settings import Settings

GOOD = np.arange(40.0).reshape(10, 4)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def post(api: TestClient, name: str, content: bytes) -> Any:
    return api.post("/v1/datasets", params={"name": name}, content=content)


def stored(settings: Settings) -> list[Path]:
    """Files of uploads in the store."""
    return [*settings.store.glob("datasets/*"), *settings.store.glob("incoming/*")]
