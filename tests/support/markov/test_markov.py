from pathlib import Path

import numpy as np
import pytest
import torch
from markov_chain.run import MarkovChain

from mptcore.specs import ExperimentSpec, validate_spec
from mptlab_contract import TractableContract

OBSERVATIONS = (np.random.default_rng(3).random((9, 7)) < 0.4).astype(float)
SPEC = {
    "model": {"family": "markov", "stay": 0.8},
    "data": {"source": "upload", "dataset": "chain", "n": 9, "dim": 7},
    "evaluate": {"masks": {"schedule": "all", "per_size": 900}},
    "compute": {"threads": 1, "memory_mib": 1, "device": "cpu"},
}


class TestMarkovChain(TractableContract):
    def model(self, device: torch.device, memory_bytes: int | None = None) -> MarkovChain:
        return MarkovChain(0.8, torch.from_numpy(OBSERVATIONS).to(device))

    def log_prob(self, observed: torch.Tensor) -> float:
        chains = np.indices([2] * 7).reshape(7, -1).T  # all of them, (128, 7)
        prior = np.where(chains[:, 1:] == chains[:, :-1], 0.8, 0.2).prod(1) / 2
        agrees = (chains[:, None, observed] == OBSERVATIONS[:, observed]).all(2)  # (128, 9)
        return float(np.log(prior @ agrees).mean())

    @pytest.fixture
    def spec(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExperimentSpec:
        (tmp_path / "datasets/chain").mkdir(parents=True)
        np.save(tmp_path / "datasets/chain/data.npy", OBSERVATIONS)
        monkeypatch.setenv("MPT_STORE", str(tmp_path))
        return validate_spec(SPEC)
