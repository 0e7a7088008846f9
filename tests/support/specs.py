"""Small specs, and how the filter reads them."""

import json
from typing import Any

SMALL: dict[str, Any] = {
    "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator"},
    "data": {"source": "ppca", "n": 20, "dim": 6, "latent_dim": 2, "noise_precision": 5.0},
    "evaluate": {"masks": {"schedule": "all", "per_size": 3}},
    "seeds": [4, 44],
    "compute": {"threads": 1},
}


def line(spec: dict[str, Any]) -> bytes:
    return json.dumps(spec).encode() + b"\n"
