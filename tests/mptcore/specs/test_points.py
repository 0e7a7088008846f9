"""The estimated number of points of a spec, compared with the points that the run writes."""

from collections import Counter
from typing import Any

import pytest

from mptcore.protocol.records import Point
from mptcore.run import run
from mptcore.specs import Limits, SpecError
from mptcore.specs.experiment import MAX_CURVES
from tests.support.ppca_spec import ppca_spec
from tests.support.runs import spec_of
from tests.support.vae_specs import LINEAR

PER_SIZE, DIM = 6, 5
MASKS = {"schedule": "all", "per_size": PER_SIZE}
BASELINE = {"family": "ppca", "latent_dim": 1, "init": "maximum_likelihood"}
TRAINED = {
    "model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "random"},
    "train": {"epochs": 7, "evaluate_every": 2, "curve_at": [0, 3]},
}
CASES: list[dict[str, Any]] = [
    {},
    {"seeds": [1, 2, 3]},
    {"evaluate": {"masks": MASKS, "bias": True}},
    {"evaluate": {"masks": MASKS, "convergence": True}},
    {"evaluate": {"masks": MASKS, "bias": True, "convergence": True}, "baseline": BASELINE},
    {"evaluate": {"masks": {"schedule": "sizes", "sizes": [1, 3], "per_size": PER_SIZE}}},
    {**TRAINED, "evaluate": {"masks": MASKS, "convergence": True}, "seeds": [1, 2]},
]


def spec(**changes: Any) -> dict[str, Any]:
    return ppca_spec(data__dim=DIM, **{"evaluate": {"masks": MASKS}, **changes})


@pytest.mark.parametrize("changes", CASES)
def test_the_points_of_a_run_are_counted(changes: dict[str, Any]) -> None:
    """The count is exact for curves, and a maximum for training."""
    parsed = spec_of(spec(**changes))
    found = Counter(one.series for one in run(parsed) if isinstance(one, Point))
    count = parsed.point_count()
    curve = found["score"] + found["bias"] + found["score_difference"]
    assert (count.curve, count.convergence) == (curve, found["convergence"])
    assert found.total() - curve - found["convergence"] <= count.training
    assert (count.training > 0) == ("train" in changes)


def test_more_points_than_the_limit_are_refused() -> None:
    parsed = spec_of(spec(seeds=[1, 2]))
    assert parsed.point_count().total == 2 * DIM
    assert parsed.limit_problems(Limits(points=2 * DIM)) == []
    (problem,) = parsed.limit_problems(Limits(points=2 * DIM - 1))
    assert problem.pointer == "/evaluate/masks"
    assert problem.detail == (
        "an experiment writes at most 9 points (MPT_LIMITS__POINTS); this one would write up to "
        "10: use fewer mask sizes, seeds or train.curve_at"
    )


@pytest.mark.parametrize(
    ("changes", "pointer", "cure"),
    [
        (
            {"evaluate": {"masks": MASKS, "convergence": True}},
            "/evaluate/convergence",
            "lower per_size, or leave it out",
        ),
        (TRAINED | {"train": {"epochs": 100}}, "/train/evaluate_every", "raise it"),
    ],
)
def test_the_field_that_causes_most_points_is_named(
    changes: dict[str, Any], pointer: str, cure: str
) -> None:
    (problem,) = spec_of(spec(**changes)).limit_problems(Limits(points=5))
    assert problem.pointer == pointer
    assert problem.detail.endswith(f": {cure}")


VAE: dict[str, Any] = {
    **LINEAR,
    "train": {"objective": ["mpt", "elbo"], "epochs": 9, "evaluate_every": 4, "curve_at": [5]},
    "evaluate": {"masks": MASKS},
    "seeds": [1, 2],
}
TEXT: dict[str, Any] = {
    "model": {"family": "masked_lm", "checkpoint": "tiny"},
    "baseline": {"family": "masked_lm", "checkpoint": "tiny", "init": "random"},
    "data": {"source": "text", "file": "a.txt"},
    "train": {"steps": 9, "evaluate_every": 4, "curve_at": [0, 5]},
    "evaluate": {"masks": {"schedule": "rates", "rates": [0.1, 0.5]}},
}


BESIDE_A_PPCA: dict[str, Any] = {
    "model": {
        **LINEAR["model"],
        "likelihood": {"distribution": "gaussian", "noise_precision": 1.0},
    },
    "baseline": BASELINE,
    "data": {"source": "digits"},
    "evaluate": {"masks": MASKS},
}


@pytest.mark.parametrize(
    ("value", "curve", "training"),
    [(VAE, 4 * 2 * 64, 4 * 4 * 6), (TEXT, 3 * 2 * 3, 4 * 6), (BESIDE_A_PPCA, 3 * 64, 0)],
    ids=["vae", "text", "vae and ppca"],
)
def test_other_families_count_points_in_the_same_way(
    value: dict[str, Any], curve: int, training: int
) -> None:
    """Starts × curves × sizes or rates × models and their difference, and six series of a step."""
    parsed = spec_of(value)
    count = parsed.point_count()
    assert (count.curve, count.convergence, count.training) == (curve, 0, training)
    (problem,) = parsed.limit_problems(Limits(points=count.total - 1))
    assert "MPT_LIMITS__POINTS" in problem.detail
    assert parsed.limit_problems(Limits(points=count.total)) == []


def test_more_curves_than_the_limit_are_refused() -> None:
    """Each has metrics of its own, and an answer holds all metrics of a run: 1,000 seeds and 1,000
    epochs would have three million, which take gigabytes of memory."""
    train = {"epochs": 7000, "evaluate_every": 7000, "curve_at": [*range(999)]}
    one = {"schedule": "sizes", "sizes": [1], "per_size": 1}
    changes = {**TRAINED, "train": train, "evaluate": {"masks": one}}
    parsed = spec_of(spec(**changes, seeds=[*range(MAX_CURVES // 1000)]))
    assert parsed.curves == MAX_CURVES
    assert parsed.limit_problems(Limits()) == []
    for more in ({"seeds": [*range(MAX_CURVES // 1000 + 1)]}, {"baseline": BASELINE}):
        with pytest.raises(SpecError, match=f"at most {MAX_CURVES} curves") as refused:
            spec_of(spec(**{"seeds": [*range(MAX_CURVES // 1000)], **changes, **more}))
        (problem,) = refused.value.problems
        assert problem.pointer == "/train/curve_at"
