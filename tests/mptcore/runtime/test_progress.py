"""Progress of whole runs: one count over seeds, objectives, training and curves."""

from functools import cache
from typing import Any

import pytest

from mptcore.protocol.records import Progress
from mptcore.run import run
from tests.mptcore.training.test_seeds_apart import FAMILIES
from tests.support import tiny_lm
from tests.support.ppca_spec import ppca_spec
from tests.support.runs import spec_of

TRAIN = {"epochs": 6, "masks": {"schedule": "all", "per_size": 2}, "curve_at": [0, 3]}
RANDOM = {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "random"}
TARGET = {"target_std_err": 0.1, "max_masks": 5000}
SPECS: dict[str, dict[str, Any]] = {
    "seeds": ppca_spec(seeds=[4, 44, 444]),
    "training": ppca_spec(model=RANDOM, train=TRAIN, seeds=[4, 44]),
    "targets": ppca_spec(model=RANDOM, train=TRAIN, evaluate=TARGET, seeds=[4, 44]),
    "objectives": {**FAMILIES["linear vae"], "seeds": [4, 44]},
}


def progress(spec: dict[str, Any]) -> list[Progress]:
    return [record for record in run(spec_of(spec)) if isinstance(record, Progress)]


@cache
def progress_of(name: str) -> list[Progress]:
    return progress(SPECS[name])


@pytest.mark.parametrize("name", SPECS)
def test_progress_rises_to_its_total(name: str) -> None:
    found = progress_of(name)
    done = [one.done for one in found]
    assert len(done) > 2
    assert done == sorted(set(done))
    assert all(one.done <= one.total for one in found)
    assert found[-1].done == found[-1].total


def test_the_total_of_progress_follows_the_target() -> None:
    found = progress(ppca_spec(evaluate=TARGET, data__n=50, data__dim=20, seeds=[4, 44]))
    assert found[0].total > 2 * found[-1].total


@pytest.mark.parametrize(
    ("name", "unit", "length"), [("training", "epochs", 6), ("objectives", "epochs", 3)]
)
def test_training_counts_in_its_own_unit(name: str, unit: str, length: int) -> None:
    found = progress_of(name)
    stages = [one.stage for one in found if one.stage is not None]
    assert {(one.name, one.unit, one.total) for one in stages} == {("training", unit, length)}
    done = [one.done for one in stages]
    assert done == sorted(done)
    assert done[-1] == length
    assert found[-1].stage is None  # scoring


def test_a_language_model_trains_in_steps(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_lm.checkpoint(tmp_path / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path))
    train = {"steps": 4, "batch_size": 4, "evaluate_every": 2, "masks": {"schedule": "uniform"}}
    found = progress({**FAMILIES["masked lm"], "train": train})
    stages = [one.stage for one in found if one.stage is not None]
    assert (stages[-1].done, stages[-1].total, stages[-1].unit) == (4, 4, "steps")
