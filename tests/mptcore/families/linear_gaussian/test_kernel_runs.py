"""Whole runs by compiled loops have the records of runs by torch."""

from typing import Any

import pytest

from mptcore.protocol.records import Log, Metric, Point, Progress, Record
from mptcore.run import KERNELS, run
from mptcore.runtime.compiled import kernels
from mptcore.specs import LinearGaussianExperiment

PPCA = {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0}
GENERATOR, RANDOM = {**PPCA, "init": "generator"}, {**PPCA, "init": "random"}


def spec_of(dim: int, per_size: int, **rest: Any) -> dict[str, Any]:
    data = {
        "source": "ppca", "n": 50, "dim": dim, "latent_dim": 2, "noise_precision": 5.0,
        "noise": "shared", "seed": 1991,
    }  # fmt: skip
    evaluate = {"masks": {"schedule": "all", "per_size": per_size}}
    return {"model": GENERATOR, "data": data, "evaluate": evaluate, "seeds": [4, 44], **rest}


def training(per_size: int, **rest: Any) -> dict[str, Any]:
    return {
        "objective": "mpt",
        "epochs": 6,
        "masks": {"schedule": "all", "per_size": per_size},
        **rest,
    }


SPECS = {
    "table1": spec_of(24, 20),
    "fig2": spec_of(10, 2, model=RANDOM, train=training(1)),
    "fig5": spec_of(
        10, 20, model=RANDOM, baseline=GENERATOR, train=training(20, curve_at=[0, 3, 6])
    ),
}
"""Scores, and gradients of `fig5`, are computed in several parts."""


def records_of(spec: dict[str, Any], threads: int) -> list[Record]:
    spec = {**spec, "compute": {"device": "cpu", "threads": threads}}
    records = run(LinearGaussianExperiment.model_validate(spec))
    return [record for record in records if not isinstance(record, Log | Progress)]


def numbers(records: list[Record]) -> list[float]:
    found: list[float] = []
    for record in records:
        if isinstance(record, Point | Metric):
            found += [value for value in (record.value, record.std_err) if value is not None]
    return found


@pytest.mark.parametrize("name", SPECS)
def test_records_are_those_of_torch_and_of_any_number_of_threads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(map(kernels, KERNELS))
    compiled = records_of(SPECS[name], 1)
    assert records_of(SPECS[name], 2) == compiled
    monkeypatch.setenv("MPT_KERNELS", "torch")
    kernels.cache_clear()
    try:
        by_torch = records_of(SPECS[name], 1)
    finally:
        kernels.cache_clear()
    assert [type(record) for record in by_torch] == [type(record) for record in compiled]
    assert len(numbers(compiled)) > 50
    assert numbers(compiled) == pytest.approx(numbers(by_torch), rel=1e-12, abs=1e-13)
