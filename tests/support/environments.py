"""Environment of a made-up attempt."""

from typing import Any

ENVIRONMENT: dict[str, Any] = {
    "core": "0123456789abcdef",
    "packages": {"python": "3.11.7", "torch": "2.13.0"},
    "platform": "Linux",
    "cpu": "a processor",
    "cpu_capability": "AVX2",
    "threads": 2,
    "gpu": None,
    "gpu_driver": None,
    "cuda": None,
    "precision": "float64",
    "seeds": [4],
    "inputs": {"MPT_DATA_DIR/text/a.txt": "0" * 64},
}
