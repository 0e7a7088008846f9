"""Which code computes: the sources of mptcore and the packages that it stands on. No torch."""

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = ("torch", "transformers", "numpy", "scipy", "scikit-learn")
"""What results depend upon."""
PACKAGES = (
    *("mptlab-server", *LIBRARIES),
    *("torchvision", "tokenizers", "safetensors", "datasets", "pyarrow", "pydantic"),
)
CORE_DIGITS = 16


@cache
def core_digest() -> str:
    """Of the sources of mptcore and the versions of the libraries that it computes with, as they
    are installed here."""
    digest = hashlib.sha256()
    folder = Path(__file__).parents[1]
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    for name in LIBRARIES:
        digest.update(f"{name} {package_versions()[name]}\n".encode())
    return digest.hexdigest()[:CORE_DIGITS]


@cache
def package_versions() -> Mapping[str, str]:
    """Of Python and of the packages, by name; "none" where one is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
