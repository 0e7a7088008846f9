"""Columns in very different units, and columns near the limits of float64. The exact LML is that of
the closed form in sixty digits."""

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from mptcore.data.dataset import Dataset, mean_of, refuse_extreme, scale_of
from mptcore.families.linear_gaussian.fit import fit_missing
from mptcore.families.linear_gaussian.initial import closed_form
from mptcore.families.linear_gaussian.moments import second_moment
from mptcore.protocol.records import Log, Record, RunError
from mptcore.run import run
from mptcore.specs import PpcaModel
from tests.mptcore.families.linear_gaussian.test_missing_runs import Uploaded
from tests.mptcore.families.linear_gaussian.test_missing_runs import upload as upload
from tests.support.runs import metric, spec_of, value_of

SCALES = (1e-6, 1e-3, 1.0, 1e3, 1e6)
FIT = {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"}
FACTORS = {**FIT, "family": "factor_analysis"}
EXHAUSTIVE = {"masks": {"schedule": "all", "design": "exhaustive"}}


def sample(noise: float = 1.0, scales: tuple[float, ...] = SCALES) -> Tensor:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((200, 2)) @ generator.standard_normal((2, len(scales)))
    x = x + noise * generator.standard_normal(x.shape)
    return torch.from_numpy(x * np.array(scales))


def exact_lml(x: Tensor, latent_dim: int, noise: float | None = None) -> float:
    """Return the LML of the best PPCA, with a given noise variance or the best one."""
    with mpmath.workdps(60):
        n, dim = x.shape
        rows = mpmath.matrix(x.tolist())
        for j in range(dim):
            mean = mpmath.fsum(rows[:, j]) / n
            for i in range(n):
                rows[i, j] -= mean
        values = mpmath.eigsy(rows.T * rows / n, eigvals_only=True)
        eigenvalues = sorted(values, reverse=True)
        rest = eigenvalues[latent_dim:]
        shared = mpmath.fsum(rest) / len(rest) if noise is None else mpmath.mpf(noise)
        variances = [*eigenvalues[:latent_dim], *[shared] * len(rest)]
        terms = [
            mpmath.log(2 * mpmath.pi * variance) + eigenvalue / variance
            for variance, eigenvalue in zip(variances, eigenvalues, strict=True)
        ]
        return float(-mpmath.fsum(terms) / 2)


def ran(model: dict[str, Any], data: dict[str, Any]) -> list[Record]:
    spec = {"model": model, "data": data, "evaluate": EXHAUSTIVE, "compute": {"threads": 1}}
    return [*run(spec_of(spec))]


def lml_of(model: dict[str, Any], data: dict[str, Any]) -> float:
    return value_of(metric(ran(model, data), "lml"))


def refusal(model: dict[str, Any], data: dict[str, Any]) -> str:
    with pytest.raises(RunError) as error:
        ran(model, data)
    assert error.value.cause == "invalid"
    return str(error.value)


@pytest.mark.parametrize("latent_dim", [1, 2, 3])
def test_ppca_of_columns_in_different_units_has_the_exact_lml(
    latent_dim: int, upload: Uploaded
) -> None:
    """With K = 2, 0.74 is left beyond, a share of 4e-13 of the largest variance."""
    x = sample()
    records = ran({**FIT, "latent_dim": latent_dim}, upload(x))
    expected = exact_lml(x, latent_dim)
    for name in ("lml", "mpt"):
        assert value_of(metric(records, name)) == pytest.approx(expected, rel=1e-9)
    warnings = [r.message for r in records if isinstance(r, Log) and r.level == "warning"]
    assert any("data.standardize=columns" in message for message in warnings)


def test_a_given_noise_far_below_the_largest_column_is_used() -> None:
    x = sample()
    found = closed_form(second_moment(x, x.mean(0)), x.mean(0), 3, 1e6, x)
    expected = exact_lml(x, 3, 1e-6)
    assert found.noise_variance.tolist() == pytest.approx([1e-6] * 5)
    assert found.log_prob(x).mean().item() == pytest.approx(expected, rel=1e-4)  # dense


@pytest.mark.parametrize("scales", [SCALES, (1.0,) * 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_exact_combinations_of_columns_in_any_units_have_no_maximum(
    scales: tuple[float, ...], dtype: torch.dtype
) -> None:
    """Data are rounded as a file of this precision rounds them."""
    x = sample(noise=0.0, scales=scales).to(dtype).double()
    with pytest.raises(RunError, match="the data have no variance beyond 2 dimensions"):
        closed_form(second_moment(x, x.mean(0)), x.mean(0), 2, None, x)


def gaps(x: Tensor) -> Tensor:
    """Return the data with missing values."""
    missing = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.1
    return x.masked_fill(missing, torch.nan)


@pytest.mark.parametrize(
    ("noise_precision", "cure"),
    [(None, "columns, or"), (1.0, "columns, lower noise_precision, or")],
)
def test_missing_values_in_columns_of_different_units_are_refused(
    noise_precision: float | None, cure: str, upload: Uploaded
) -> None:
    """The reason is not that the data had no variance."""
    message = refusal({**FIT, "noise_precision": noise_precision}, upload(gaps(sample())))
    assert "lost in the rounding errors of the largest. Set data.standardize=" + cure in message
    lml_of(FIT, upload(gaps(sample()), standardize="columns"))


def test_an_exact_fit_of_observed_values_is_named() -> None:
    x = gaps(sample(noise=0.0, scales=(1.0,) * 5))
    with pytest.raises(RunError, match="2 latent dimensions fit all observed values exactly"):
        [*fit_missing(PpcaModel.model_validate(FIT), x)]


@pytest.mark.parametrize("has_gaps", [False, True])
def test_factor_analysis_does_not_depend_on_units(has_gaps: bool, upload: Uploaded) -> None:
    x = gaps(sample(scales=(1.0,) * 5)) if has_gaps else sample(scales=(1.0,) * 5)
    powers = [-20, -10, 0, 10, 20]
    observed = (~x.isnan()).double().mean(0)
    logs = observed @ torch.tensor(powers, dtype=torch.float64) * np.log(2)
    expected = lml_of(FACTORS, upload(x))
    found = lml_of(FACTORS, upload(x * 2.0 ** torch.tensor(powers)))
    assert found + logs.item() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("model", [FIT, FACTORS], ids=lambda model: model["family"])
@pytest.mark.parametrize("factor", [1e200, 1e306, 1e-200, 1e-300])
def test_extreme_columns_are_refused_or_standardized(
    model: dict[str, Any], factor: float, upload: Uploaded
) -> None:
    x = sample(scales=(1.0,) * 5)
    expected = lml_of(model, upload(x, standardize="columns", heldout=0.2))
    found = lml_of(model, upload(x * factor, standardize="columns", heldout=0.2))
    assert found == pytest.approx(expected, rel=1e-10)
    whole = lml_of(model, upload(x, standardize=True))
    assert lml_of(model, upload(x * factor, standardize=True)) == pytest.approx(whole, rel=1e-10)
    message = refusal(model, upload(x * factor))
    assert message.startswith("column 0 (counted from 0) has values up to ")
    what = "whose squares overflow" if factor > 1 else "and squares of their differences underflow"
    cure = "multiply the column by a constant, or set data.standardize=columns"
    assert message.endswith(f"in size, {what} in float64: {cure}")


@pytest.mark.parametrize("model", [FIT, FACTORS], ids=lambda model: model["family"])
@pytest.mark.parametrize("power", [-480, 480])
def test_large_and_small_data_within_the_limits_are_computed(
    model: dict[str, Any], power: int, upload: Uploaded
) -> None:
    """2^480 is 3e144."""
    x = sample(scales=(1.0,) * 5)
    expected = lml_of(model, upload(x)) - 5 * power * np.log(2)
    assert lml_of(model, upload(x * 2.0**power)) == pytest.approx(expected, rel=1e-10)


def test_a_cell_of_1e308_is_refused_by_its_column(upload: Uploaded) -> None:
    x = sample(scales=(1.0,) * 5)
    x[3, 2], x[4, 2] = 1e308, -1.7e308
    message = refusal(FIT, upload(x))
    assert message.startswith("column 2 (counted from 0) has values up to 1.7e+308 in size, whose")
    y = x.clone()
    y[:, 2] /= 1e308
    expected = lml_of(FIT, upload(y, standardize="columns"))
    assert lml_of(FIT, upload(x, standardize="columns")) == pytest.approx(expected, rel=1e-10)


def test_means_and_scales_of_extreme_columns_are_exact() -> None:
    x = torch.tensor([[1.0, 4.0], [torch.nan, 8.0], [3.0, 6.0]], dtype=torch.float64)
    for power in (-1070, -600, 0, 600, 1019):
        scaled = x * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)
        back = 2.0 ** (-(power // 2))
        again = 2.0 ** -(power - power // 2)
        assert (mean_of(scaled) * back * again).tolist() == [2.0, 6.0]
        if power > -1070:
            assert (scale_of(scaled) * back * again).tolist() == [1.0, (8 / 3) ** 0.5]


def test_single_precision_has_narrower_limits() -> None:
    for factor, is_refused in ((1e12, False), (1e15, True), (1e-14, False), (1e-17, True)):
        data = Dataset(sample(scales=(1.0, 1.0, factor)), columns=("a", "b", "c"))
        refuse_extreme(data, torch.float64)
        if is_refused:
            with pytest.raises(RunError, match=r"^column c has values up to .* in float32"):
                refuse_extreme(data, torch.float32)
        else:
            refuse_extreme(data, torch.float32)
