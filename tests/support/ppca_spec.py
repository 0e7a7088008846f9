"""Small experiments that most tests submit."""

from typing import Any


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


def spec_on(device: str) -> dict[str, Any]:
    """A small experiment for a device. That for `auto` is a linear VAE, because PPCA then uses the
    CPU."""
    if device != "auto":
        return ppca_spec(compute__device=device)
    return {
        "model": {
            "family": "linear_vae",
            "latent_dim": 2,
            "likelihood": {"distribution": "gaussian", "noise_precision": 5.0},
        },
        "data": ppca_spec()["data"],
        "evaluate": ppca_spec()["evaluate"],
        "compute": {"device": "auto", "threads": 1},
    }


TRAINED = ppca_spec(model__init="random", train={"objective": "lml", "epochs": 1})


def from_weights(experiment_id: str) -> dict[str, Any]:
    """The small experiment with the weights of another."""
    return ppca_spec(
        model__init="experiment", model__experiment=experiment_id, model__noise_precision=...
    )
