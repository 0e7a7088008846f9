"""Packages that only some calls need, imported when they are."""

import importlib
from typing import Any


def needed(name: str, extra: str) -> Any:
    """The module of this name. Raises ImportError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        package = name.split(".")[0]
        told = f"this needs {package}, which is not installed: pip install {package}, or the client"
        raise ImportError(f"{told} with its extra, 'mptlab[{extra}]'") from None
