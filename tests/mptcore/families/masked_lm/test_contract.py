"""Masked language models satisfy the contract of every model that can be scored."""

from pathlib import Path
from typing import ClassVar

import pytest
import torch

from mptcore.families.masked_lm.masks import MaskedBatch, Masker
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.specs import ExperimentSpec
from mptlab_contract import ModelContract, SpecPart
from tests.support import tiny_lm
from tests.support.runs import spec_of
from tests.support.texts import corpus_of


class TestMaskedLm(ModelContract):
    tolerance: ClassVar[float] = 1e-5  # the network computes in float32
    train: ClassVar[SpecPart] = {
        "steps": 4,
        "batch_size": 8,
        "evaluate_every": 2,
        "curve_at": [2],
    }
    baseline: ClassVar[SpecPart] = {
        "family": "masked_lm",
        "checkpoint": "tiny",
        "init": "random",
    }

    def model(self, device: torch.device, memory_bytes: int | None = None) -> MaskedLm:
        return MaskedLm(tiny_lm.network(scale=8.0), device, torch.float32, memory_bytes)

    @pytest.fixture
    def masks(self) -> MaskedBatch:
        masker = Masker(corpus_of(tiny_lm.lines(12)), 4, 15)
        rates = torch.full((12,), 0.4, dtype=torch.float64)
        return masker.at_rates(torch.arange(12), rates, torch.Generator().manual_seed(1))[0]

    @pytest.fixture
    def spec(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExperimentSpec:
        # A GPU pads the sequences of one attention call, so its dropout differs from a CPU's.
        tiny_lm.checkpoint(tmp_path / "models" / "tiny", attention_probs_dropout_prob=0.0)
        monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path / "models"))
        return spec_of(
            {
                "model": {"family": "masked_lm", "checkpoint": "tiny"},
                "data": {"source": "text", "lines": tiny_lm.lines(12)},
                "evaluate": {"masks": {"schedule": "rates", "rates": [0.3, 0.6]}},
                "compute": {
                    "threads": 1,
                    "device": "cpu",
                    "memory_mib": 1,
                    "precision": "float32",
                },
            }
        )
