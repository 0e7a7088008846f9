"""Factor analysis by EM and L-BFGS-B."""

import io
import json
from itertools import pairwise
from typing import Any

import pytest
import torch
from sklearn.decomposition import FactorAnalysis
from torch import Tensor

from mptcore.data.dataset import Dataset
from mptcore.families.linear_gaussian import fit
from mptcore.families.linear_gaussian.density import LowRankGaussian
from mptcore.families.linear_gaussian.fit import fit_complete, fit_missing
from mptcore.families.linear_gaussian.initial import closed_form
from mptcore.families.linear_gaussian.moments import second_moment
from mptcore.families.linear_gaussian.run import POINTS_APART, refuse_constant_columns
from mptcore.protocol.orders import Assignment
from mptcore.protocol.records import Progress, Record, RunError
from mptcore.run import resumable, run
from mptcore.runtime.runner import SpecRunner
from mptcore.specs import FactorAnalysisModel, LinearGaussianExperiment, SpecError
from mptcore.specs.families.linear_gaussian import MAX_FIT_POINTS, MAX_ITERATIONS
from tests.support.runs import metric, points, spec_of, value_of


def sample() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    loadings = torch.randn(8, 2, generator=generator, dtype=torch.float64)
    latent = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(500, 8, generator=generator, dtype=torch.float64)
    return latent @ loadings.mT + noise * torch.linspace(0.3, 2, 8, dtype=torch.float64) + 5


def best_density(x: Tensor) -> LowRankGaussian:
    *_, last = fit_complete(second_moment(x, x.mean(0)), x.mean(0), 2)
    return last.density


def test_em_reaches_the_likelihood_of_scikit_learn() -> None:
    x = sample()
    density = best_density(x)
    reference = FactorAnalysis(2, tol=1e-10, max_iter=10_000, svd_method="lapack").fit(x)
    assert density.log_prob(x).mean().item() >= reference.score(x.numpy()) - 1e-6


def test_it_fits_better_than_ppca_if_the_noise_differs_by_column() -> None:
    x = sample()
    ppca = closed_form(second_moment(x, x.mean(0)), x.mean(0), 2)
    assert best_density(x).log_prob(x).mean() > ppca.log_prob(x).mean() + 0.1


FITTED = {"family": "factor_analysis", "latent_dim": 2, "init": "maximum_likelihood"}
STARTED = {**FITTED, "init": "random", "noise_precision": 1.0}
LEARNED = {"epochs": 1, "learn_noise_precision": True}


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"model": FITTED}, True),
        ({"model": {**FITTED, "family": "ppca"}, "baseline": FITTED}, True),
        ({"model": STARTED, "train": LEARNED}, True),
        ({"model": {**STARTED, "family": "ppca"}, "train": LEARNED}, False),
        ({"model": STARTED, "train": {"epochs": 1}}, False),
    ],
)
def test_a_noise_variance_of_a_constant_column_is_not_estimated(
    changes: dict[str, Any], refused: bool
) -> None:
    """Digits have black borders, on which all else works."""
    masks = {"schedule": "sizes", "sizes": [1], "per_size": 1}
    value = {"data": {"source": "digits"}, "evaluate": {"masks": masks}, **changes}
    if not refused:
        assert [*run(spec_of(value))]
        return
    with pytest.raises(SpecError, match=r"columns 0, 32, 39 are constant \(counted from 0\)"):
        spec_of(value)


def test_a_noise_variance_has_a_lower_bound() -> None:
    """A Heywood case: two columns that are the same have no noise."""
    x = sample() * 100
    x[:, 1] = x[:, 0]
    share = best_density(x).noise_variance / x.var(0, correction=0)
    assert share[:2].max().item() < 1e-3
    assert share.min().item() >= fit.MIN_SHARE * (1 - 1e-9)


@pytest.mark.parametrize("count", [10, 11])
def test_constant_columns_are_listed_up_to_ten(count: int) -> None:
    x = torch.randn(5, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, :count] = 0.1
    with pytest.raises(RunError) as error:
        refuse_constant_columns(Dataset(x))
    listed = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9" + (", …" if count > 10 else "")
    assert str(error.value) == (
        f"columns {listed} are constant (counted from 0), so factor analysis has no maximum: "
        "leave out constant columns, or use family ppca"
    )
    assert error.value.cause == "invalid"
    refuse_constant_columns(Dataset(x[:, count:]))
    with pytest.raises(RunError, match=r"^column b is constant, so"):
        refuse_constant_columns(Dataset(x[:, -2:] * torch.tensor([1, 0]), columns=("a", "b")))


def test_nearly_constant_columns_are_fitted() -> None:
    """Also next to columns with other units."""
    x = sample() * torch.tensor([1e-7, 1e7] * 4, dtype=torch.float64)
    refuse_constant_columns(Dataset(x))
    density = best_density(x)
    alike = sample()
    scaled = best_density(alike)
    logs = density.log_prob(x).mean().item(), scaled.log_prob(alike).mean().item()
    assert logs[0] == pytest.approx(logs[1], abs=1e-4)


def test_equal_columns_are_fitted_to_the_maximum_of_their_values() -> None:
    """Their noise variances are small, where the log density from the covariance had errors of 1e-5
    nats, at which a fit ended 0.002 nats too low."""
    generator = torch.Generator().manual_seed(144)
    x = torch.randn(15, 6, generator=generator, dtype=torch.float64)
    x[:, 1] = x[:, 0]
    *_, last = fit_complete(second_moment(x, x.mean(0)), x.mean(0), 4)
    spec = FactorAnalysisModel(family="factor_analysis", latent_dim=4, init="maximum_likelihood")
    *_, by_rows = fit_missing(spec, x)
    assert last.lml == pytest.approx(by_rows.lml, abs=1e-6)
    assert last.lml == pytest.approx(last.density.log_prob(x).mean().item(), abs=1e-8)


DATA = {"source": "ppca", "n": 60, "dim": 6, "latent_dim": 2, "noise_precision": 2.0}
MASKS = {"masks": {"schedule": "all", "per_size": 2}}


def fitted(**changes: Any) -> tuple[LinearGaussianExperiment, list[Record]]:
    one = {"threads": 1}
    spec = spec_of({"model": FITTED, "data": DATA, "evaluate": MASKS, "compute": one, **changes})
    assert isinstance(spec, LinearGaussianExperiment)
    return spec, list(run(spec))


def test_a_fit_records_the_lml_of_its_iterations() -> None:
    """Once for two seeds that share the data; and the last one is the model that is scored."""
    _, found = fitted(seeds=[3, 4])
    lml = points(found, "lml_fitting")
    assert [one.x for one in lml[:4]] == [10, 20, 30, 40]
    values = [value_of(one) for one in lml]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(value_of(metric(found, "lml", seed=4)), rel=1e-10)
    assert {(one.labels["seed"], one.std_err) for one in lml} == {(3, 0.0)}
    told = [one for one in found if isinstance(one, Progress) and one.stage]
    stages = [one.stage for one in told if one.stage]
    assert [(one.name, one.unit) for one in stages] == [("fitting", "iterations")] * len(stages)
    assert [one.done for one in stages] == [one.x for one in lml]
    assert {(one.done, one.total, one.unit) for one in told} == {(0, 24, "masks")}


def test_later_iterations_have_fewer_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit, "STANDSTILL", -torch.inf)  # so that it never converges
    monkeypatch.setattr(fit, "MAX_ITERATIONS", 1000)
    monkeypatch.setattr(fit, "EM_ITERATIONS", 1000)
    spec, found = fitted(seeds=[3, 4], data={**DATA, "seed": "run"}, baseline=STARTED)
    lml = [one for one in points(found, "lml_fitting") if one.labels["seed"] == 3]
    assert lml[-1].x == 1000
    assert lml[0].labels["model"] == "model"
    steps = [later.x / one.x for one, later in pairwise(lml[:-1])]
    assert min(steps) >= POINTS_APART
    assert len(lml) <= MAX_FIT_POINTS
    unfitted, _ = fitted(seeds=[3, 4], model=STARTED, baseline=STARTED)
    assert spec.point_count().total == unfitted.point_count().total + 2 * MAX_FIT_POINTS


def test_the_runner_writes_the_progress_of_a_fit() -> None:
    """Before the first mask."""
    spec, _ = fitted()
    out = io.StringIO()
    assert SpecRunner(resumable, Assignment(spec), out).run() == 0
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    stages = [one.get("stage") for one in lines if one["record"] == "progress"]
    first = {"name": "fitting", "done": 10, "total": MAX_ITERATIONS, "unit": "iterations"}
    assert stages[0] == first


@pytest.mark.parametrize("gaps", [False, True])
def test_the_fit_does_not_depend_on_the_units_of_a_column(
    gaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the covariance's leading directions EM ended 0.5 nats below the maximum. Now each step
    is the same in all units."""
    monkeypatch.setattr(fit, "MAX_ITERATIONS", 200)
    generator = torch.Generator().manual_seed(3)
    factors = torch.randn(240, 3, generator=generator, dtype=torch.float64)
    mixed = factors @ torch.randn(3, 7, generator=generator, dtype=torch.float64)
    x = mixed + 0.6 * torch.randn(240, 7, generator=generator, dtype=torch.float64)
    units = torch.tensor([1.0, 1, 1, 1000, 1, 1, 0.01], dtype=torch.float64)
    spec = FactorAnalysisModel(family="factor_analysis", latent_dim=3, init="maximum_likelihood")

    def lml(x: Tensor) -> float:
        if gaps:
            *_, last = fit_missing(spec, x)
        else:
            *_, last = fit_complete(second_moment(x, x.mean(0)), x.mean(0), 3)
        return last.lml

    assert lml(x * units) == pytest.approx(lml(x) - units.log().sum().item(), abs=1e-6)
