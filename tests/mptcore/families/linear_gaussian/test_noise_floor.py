"""Fits of factor analysis whose noise variances end at their lower bound."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.families.linear_gaussian.fit import MIN_SHARE
from mptcore.protocol.records import Log, Record
from mptcore.run import run
from tests.mptcore.families.linear_gaussian.test_missing_runs import Uploaded
from tests.mptcore.families.linear_gaussian.test_missing_runs import upload as upload
from tests.support.runs import metric, spec_of, value_of

FACTORS = {"family": "factor_analysis", "latent_dim": 1, "init": "maximum_likelihood"}
EVALUATE = {"masks": {"schedule": "fixed", "size": 1, "design": "exhaustive"}}


def repeated() -> Tensor:
    """Return three columns without correlation, of variances 4, 1 and 9, and the first again."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 3, generator=generator, dtype=torch.float64)
    basis, _ = torch.linalg.qr(x - x.mean(0))
    x = 10 * basis * torch.tensor([2.0, 1.0, 3.0])
    return torch.cat([x, x[:, :1]], 1)


def warnings(records: list[Record], words: str) -> list[str]:
    messages = [r.message for r in records if isinstance(r, Log) and r.level == "warning"]
    return [message for message in messages if words in message]


def ran(data: dict[str, Any], model: dict[str, Any] = FACTORS, **more: Any) -> list[Record]:
    return [*run(spec_of({"model": model, "data": data, "evaluate": EVALUATE, **more}))]


def test_the_bound_sets_the_lml_and_is_reported(upload: Uploaded) -> None:
    """Columns 0 and 3 are equal: their covariance has the eigenvalues 8, which the factor fits, and
    0, where the model has the lower bound of 4e-6. The two others are fitted as they are."""
    records = ran(upload(repeated()))
    variances = (8.0, 4 * MIN_SHARE, 1.0, 9.0)
    expected = -0.5 * (4 * math.log(2 * math.pi) + sum(map(math.log, variances)) + 3)
    assert value_of(metric(records, "lml")) == pytest.approx(expected, abs=1e-6)
    (warning,) = warnings(records, "lower bound")
    assert warning.startswith("seed 0: columns 0, 3 are at the lower bound of the noise variance")
    assert "1e-06 of a column's variance" in warning


@pytest.mark.parametrize("has_gaps", [False, True])
def test_the_warning_names_the_model_and_its_columns(has_gaps: bool, upload: Uploaded) -> None:
    x = repeated()
    if has_gaps:
        x[5, 1] = torch.nan
    records = ran(upload(x), baseline=FACTORS)
    found = [warning.split(":")[0] for warning in warnings(records, "columns 0, 3 are at the")]
    assert found == ["seed 0, model model", "seed 0, model baseline"]


def test_other_fits_have_no_warning(upload: Uploaded) -> None:
    generator = torch.Generator().manual_seed(1)
    both = torch.randn(100, 5, generator=generator, dtype=torch.float64)
    x = 2 * both[:, :1] + both[:, 1:]
    assert not warnings(ran(upload(x)), "lower bound")
    assert not warnings(ran(upload(repeated()), {**FACTORS, "family": "ppca"}), "lower bound")
