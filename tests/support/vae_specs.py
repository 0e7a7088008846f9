"""Specs of small VAEs."""

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
