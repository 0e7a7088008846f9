"""A fourth family by two registrations: the toy of tests/support/markov.py passes the contract and
runs as an experiment through the whole filter."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from mptcore.run import Implementation
from mptcore.specs import ExperimentSpec, SpecError, validate_spec
from tests.support import markov
from tests.support.contract import TractableContract
from tests.support.markov import MarkovChain

ROOT = Path(__file__).parents[2]
OBSERVATIONS = (np.random.default_rng(3).random((9, 7)) < 0.4).astype(float)
SPEC: dict[str, Any] = {
    "model": {"family": "markov", "stay": 0.8},
    "data": {"source": "upload", "dataset": "chain", "n": 9, "dim": 7},
    "evaluate": {"masks": {"schedule": "all", "design": "exhaustive"}},
    "compute": {"threads": 1, "memory_mib": 1, "device": "cpu"},
}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "datasets" / "chain"
    folder.mkdir(parents=True)
    np.save(folder / "x.npy", OBSERVATIONS)
    monkeypatch.setenv("MPT_STORE", str(tmp_path))


class TestMarkovChain(TractableContract):
    implementation: ClassVar[Implementation] = staticmethod(markov.implementation)

    def model(self, device: torch.device, memory_bytes: int | None = None) -> MarkovChain:
        return MarkovChain(0.8, torch.from_numpy(OBSERVATIONS).to(device))

    @pytest.fixture
    def spec(self) -> ExperimentSpec:
        drawn = {**SPEC, "evaluate": {"masks": {"schedule": "all", "per_size": 900}}}
        return validate_spec(drawn, union=markov.UNION)


def test_it_runs_through_the_whole_filter() -> None:
    command = [sys.executable, "-m", "tests.support.markov"]
    text = json.dumps(SPEC)
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    values = {line["name"]: line["value"] for line in lines if line["record"] == "metric"}
    assert [line["x"] for line in lines if line.get("series") == "score"] == list(range(1, 8))
    assert values["mpt"] == pytest.approx(values["lml"], abs=1e-10)
    signs = 2 * OBSERVATIONS - 1
    steps = np.where(signs[:, 1:] == signs[:, :-1], 0.8, 0.2)
    assert values["lml"] == pytest.approx(np.log(0.5) + np.log(steps).sum(1).mean())


def test_its_bad_specs_are_refused_by_field() -> None:
    wrong = {**SPEC, "model": {"family": "markov", "stay": 2}}
    with pytest.raises(SpecError, match=r"^/model/stay: less than 1$"):
        validate_spec(wrong, union=markov.UNION)


def test_without_its_registration_the_family_is_unknown() -> None:
    with pytest.raises(SpecError, match=r"/model/family: one of 'ppca', .*'masked_lm'$"):
        validate_spec(SPEC)
    with pytest.raises(SpecError, match="'masked_lm', 'markov'"):
        validate_spec({**SPEC, "model": {"family": "flow"}}, union=markov.UNION)
