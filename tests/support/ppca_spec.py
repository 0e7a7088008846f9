"""A small experiment that most tests submit."""

from typing import Any

LONG_MASKS = {"schedule": "all", "per_size": 200_000}
"""Masks that take a CPU longer than a GPU needs to start."""


def ppca_spec(**changes: Any) -> dict[str, Any]:
    """A small experiment; `evaluate__masks={...}` changes one part."""
    spec: dict[str, Any] = {
        "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator"},
        "data": {
            "source": "ppca",
            "n": 50,
            "dim": 6,
            "latent_dim": 2,
            "noise_precision": 5.0,
            "seed": 3,
        },
        "evaluate": {"masks": {"schedule": "all", "per_size": 4}},
        "seeds": [4],
        "compute": {"device": "cpu", "threads": 1},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        part = spec
        for parent in parents:
            part = part.setdefault(parent, {})
        if value is ...:
            del part[last]
        else:
            part[last] = value
    return spec
