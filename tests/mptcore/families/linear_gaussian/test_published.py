"""The paper's numbers that a few seconds can reach."""

import json
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from mptcore.protocol.records import Metric
from mptcore.run import run
from mptcore.specs import parse_spec

SEEDS = [4, 44, 444, 4444, 44444]


def ppca(n: int, dim: int, latent_dim: int, data_seed: int | str, masks: dict[str, Any]) -> Any:
    common = {"latent_dim": latent_dim, "noise_precision": 5.0}
    return {
        "model": {"family": "ppca", "init": "generator", **common},
        "data": {
            "source": "ppca",
            "n": n,
            "dim": dim,
            "noise": "shared",
            "seed": data_seed,
            **common,
        },
        "evaluate": {"masks": masks},
        "seeds": SEEDS,
        "compute": {"threads": 1},
    }


def metrics(spec: dict[str, Any]) -> dict[str, list[float]]:
    """The values of each metric, seed by seed."""
    found: dict[str, list[float]] = {}
    for record in run(parse_spec(json.dumps(spec).encode())):
        if isinstance(record, Metric):
            assert record.value is not None
            found.setdefault(record.name, []).append(record.value)
    return found


def test_fig1_left_exhaustively() -> None:
    found = metrics(ppca(100, 5, 2, "run", {"schedule": "all", "design": "exhaustive"}))
    assert max(map(abs, found["difference"])) < 1e-9
    assert [round(lml, 4) for lml in found["lml"]] == [-5.0598, -5.0486, -4.8969, -5.0360, -4.2694]


@pytest.mark.parametrize(("per_size", "published"), [(1, -60.445), (10, -60.223)])
def test_table1(per_size: int, published: float) -> None:
    found = metrics(ppca(1000, 200, 5, 1991, {"schedule": "all", "per_size": per_size}))
    assert found["lml"] == pytest.approx([-60.34] * 5, abs=0.005)
    assert sum(found["mpt"]) / 5 == pytest.approx(published, abs=0.005)


def test_digits_reach_the_closed_form_and_scikit_learn() -> None:
    spec = {
        "model": {"family": "ppca", "latent_dim": 10, "init": "maximum_likelihood"},
        "data": {"source": "digits"},
        "evaluate": {"masks": {"schedule": "all", "per_size": 2}},
        "compute": {"threads": 1},
    }
    lml = metrics(spec)["lml"][0]
    pca = PCA(10).fit(load_digits().data)
    assert lml == pytest.approx(pca.score(load_digits().data), abs=1e-4)
    assert lml == pytest.approx(-159.994, abs=1e-3)
    assert lml == pytest.approx(closed_form_lml(10), abs=1e-9)


def closed_form_lml(latent_dim: int) -> float:
    """Tipping & Bishop (1999): −½ [D log 2π + Σ log λ_K + (D − K) log s2 + D]. Scores use the
    covariance divided by N."""
    data = load_digits().data
    dim = data.shape[1]
    eigenvalues = np.sort(np.linalg.eigvalsh(np.cov(data.T, bias=True)))[::-1]
    log_leading = np.log(eigenvalues[:latent_dim]).sum()
    log_noise = (dim - latent_dim) * np.log(eigenvalues[latent_dim:].mean())
    return float(-0.5 * (dim * np.log(2 * np.pi) + log_leading + log_noise + dim))
