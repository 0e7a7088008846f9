"""Version of the code that computes: the sources of mptcore, its packages, and packages of families
from outside. No torch."""

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mptcore.specs.outside import outside_families

LIBRARIES = ("torch", "transformers", "numpy", "numba", "scipy", "scikit-learn")
"""Packages that results depend on."""
PACKAGES = (
    *("mptlab-server", *LIBRARIES),
    *("torchvision", "tokenizers", "safetensors", "datasets", "pyarrow", "pydantic"),
)
EXCLUDED = "presets"
"""Folder of mptcore on which no result depends: lists of specs, and judgements of results."""
CORE_DIGITS = 16


@cache
def core_digest() -> str:
    """Return a digest of the installed sources that compute results, and of the versions of
    LIBRARIES."""
    digest = hashlib.sha256()
    folder = Path(__file__).parents[1]
    for path in sorted(folder.rglob("*.py")):
        if folder / EXCLUDED in path.parents:
            continue
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    for name in LIBRARIES:
        digest.update(f"{name} {package_versions()[name]}\n".encode())
    return digest.hexdigest()[:CORE_DIGITS]


def code_digest(family: str) -> str:
    """Return a digest of the code that computes a family: core_digest() and, for one from outside,
    the sources of its package."""
    outside = outside_families().usable.get(family)
    if outside is None:
        return core_digest()
    text = f"{core_digest()} {outside.package.digest()}"
    return hashlib.sha256(text.encode()).hexdigest()[:CORE_DIGITS]


@cache
def package_versions() -> Mapping[str, str]:
    """Return the versions of Python and of PACKAGES, by name; "none" for a package that is not
    installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
