"""Optional packages, imported when a call needs them."""

import importlib
from typing import Any


def needed(name: str, extra: str) -> Any:
    """Return the module of this name. Raises ImportError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        package = name.split(".")[0]
        told = f"{package} is not installed: run pip install {package}, or install the client"
        raise ImportError(f"{told} with its extra, 'mptlab[{extra}]'") from None
