"""Tests of the toy family: the contract of a tractable model."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mptcore.specs import ExperimentSpec
from mptlab_contract import TractableContract
from tests.support.markov.family import MarkovChain
from tests.support.runs import spec_of

OBSERVATIONS = (np.random.default_rng(3).random((9, 7)) < 0.4).astype(float)


@pytest.fixture(autouse=True)
def uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with the observations as an upload."""
    folder = tmp_path / "datasets" / "chain"
    folder.mkdir(parents=True)
    np.save(folder / "data.npy", OBSERVATIONS)
    monkeypatch.setenv("MPT_STORE", str(tmp_path))


class TestMarkovChain(TractableContract):
    def model(self, device: torch.device, memory_bytes: int | None = None) -> MarkovChain:
        return MarkovChain(0.8, torch.from_numpy(OBSERVATIONS).to(device))

    @pytest.fixture
    def spec(self) -> ExperimentSpec:
        return spec_of(
            {
                "model": {"family": "markov", "stay": 0.8},
                "data": {"source": "upload", "dataset": "chain", "n": 9, "dim": 7},
                "evaluate": {"masks": {"schedule": "all", "per_size": 900}},
                "compute": {"threads": 1, "memory_mib": 1, "device": "cpu"},
            }
        )
