"""Runs whose results are not finite fail; those whose results are not final do not."""

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptcore.protocol.exit_codes import COMPLETE, FAILED
from mptcore.protocol.orders import parse_assignment
from mptcore.protocol.records import Labels, Log, Metric, Point, Record, RunError
from mptcore.run import resumable, run
from mptcore.runtime.results import with_a_result
from mptcore.runtime.runner import SpecRunner
from tests.support.runs import spec_of
from tests.support.specs import line

NAN, INFINITY = math.nan, math.inf
CURVE = Point("score", 1, NAN, None, 1)


def result(name: str, value: float | None, labels: Labels | None = None) -> Metric:
    return Metric(name, value, 0.0, labels or {}, "not final: few draws" if value is None else None)


@pytest.mark.parametrize(
    ("records", "named"),
    [
        ([result("lml", NAN)], "lml is nan"),
        ([CURVE, result("masks", 9), result("target_reached", 0), result("mpt", -INFINITY)],
         "mpt is -inf"),
        ([result("lml", None), result("lml_not_final", NAN), result("lml_ess", 3.0)],
         "lml_not_final is nan"),
        ([result("lml", -2.0, {"epoch": 3}), result("lml", NAN), result("active_units", 2)],
         "lml is nan"),
        ([result("pll", -2.0, {"step": 3}), result("pll", NAN), result("texts_scored", 2)],
         "pll is nan"),
        ([result("a", NAN), result("a", INFINITY), result("b", NAN), result("c", NAN),
          result("d", NAN)], "a is nan, b is nan, c is nan, …"),
    ],
)  # fmt: skip
def test_results_that_are_not_numbers_fail(records: list[Record], named: str) -> None:
    """After all records."""
    passed: list[Record | None] = []
    with pytest.raises(RunError) as error:
        passed.extend(with_a_result(iter([None, *records]), "rescale"))
    assert error.value.cause == "error"
    assert str(error.value) == f"no result is a finite number ({named}): rescale"


@pytest.mark.parametrize(
    "records",
    [
        [],
        [CURVE, Log("info", "no metrics")],
        [result("masks", NAN)],
        [result("lml", None)],
        [result("lml", None), result("lml_not_final", -3.0)],
        [result("lml", NAN, {"seed": 1}), result("lml", -3.0, {"seed": 2})],
        [result("lml", NAN, {"epoch": 0}), result("lml", -3.0)],
    ],
)
def test_other_runs_pass_unchanged(records: list[Record]) -> None:
    given = [None, *records]
    passed = [*with_a_result(iter(given), "rescale")]
    assert all(a is b for a, b in zip(passed, given, strict=True))


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], dict[str, Any]]:
    """Write an upload of 12 columns just below the largest values that are allowed. The sum over
    columns overflows with a noise precision of 1e12."""
    monkeypatch.setenv("MPT_STORE", str(tmp_path))
    (tmp_path / "datasets/a").mkdir(parents=True)

    def source(size: float) -> dict[str, Any]:
        x = size * np.random.default_rng(0).uniform(-1, 1, (4, 12))
        np.save(tmp_path / "datasets/a/data.npy", x)
        return {"source": "upload", "dataset": "a", "n": 4, "dim": 12}

    return source


PPCA = {"family": "ppca", "latent_dim": 1, "noise_precision": 1e12}
VAE = {
    "family": "vae", "latent_dim": 1, "network": {"layers": "dense", "widths": [4]},
    "likelihood": {"distribution": "gaussian", "noise_precision": 1e12},
}  # fmt: skip
MASKS = {"schedule": "fixed", "size": 6, "per_size": 2}


@pytest.mark.parametrize(
    ("model", "size", "cure"),
    [(PPCA, 1.2e148, "rescale or standardize the data"), (VAE, 1.7e13, "or use precision float64")],
    ids=["ppca", "vae"],
)
def test_a_run_of_each_family_fails_with_its_cause(
    model: dict[str, Any], size: float, cure: str, wide: Callable[[float], dict[str, Any]]
) -> None:
    single = {"threads": 1, "precision": "float32"}  # of networks
    spec = {"model": model, "data": wide(size), "evaluate": {"masks": MASKS}, "compute": single}
    with pytest.raises(RunError, match=r"^no result is a finite number") as error:
        [*run(spec_of(spec))]
    assert str(error.value).endswith(cure)
    out = io.StringIO()
    assert SpecRunner(resumable, parse_assignment(line(spec)), out).run() == FAILED
    last = json.loads(out.getvalue().splitlines()[-1])
    assert (last["record"], last["cause"]) == ("failure", "error")
    assert last["message"] == str(error.value)
    spec["data"] = wide(1.0)
    assert SpecRunner(resumable, parse_assignment(line(spec)), io.StringIO()).run() == COMPLETE
