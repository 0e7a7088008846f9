"""Specs of small VAEs."""

import json
from typing import Any


def deep_vae(latent_dim: int, width: int, draws: int, rounds: int) -> dict[str, Any]:
    """The model of a VAE with one dense hidden layer, scored by recursion."""
    return {
        "family": "vae",
        "latent_dim": latent_dim,
        "likelihood": {"distribution": "gaussian", "noise_precision": 4.0},
        "network": {"layers": "dense", "widths": [width]},
        "conditionals": {"method": "recursive", "draws": draws, "rounds": rounds},
    }


LINEAR: dict[str, Any] = {
    "model": {
        "family": "linear_vae",
        "latent_dim": 2,
        "likelihood": {"distribution": "bernoulli"},
        "conditionals": {"method": "uniform_grid", "nodes": 20, "extent": 4.0},
    },
    "data": {"source": "digits", "binarize": "threshold"},
    "compute": {"threads": 1, "precision": "float32"},
}
DEEP: dict[str, Any] = {
    "model": deep_vae(latent_dim=4, width=64, draws=4, rounds=3),
    "data": {"source": "digits", "standardize": True, "heldout": 0.2},
    "evaluate": {"lml": {"method": "iwae", "samples": 100}, "masks": {"schedule": "fixed",
                 "rate": 0.33, "per_size": 2}},
    "compute": {"threads": 1, "precision": "float32"},
}  # fmt: skip


def changed(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the spec with another value at a path like data/n."""
    copy = json.loads(json.dumps(base))
    *parents, last = path.split("/")
    place = copy
    for name in parents:
        place = place.setdefault(name, {})
    place[last] = value
    return copy  # type: ignore[no-any-return]
