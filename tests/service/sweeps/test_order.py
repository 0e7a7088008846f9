"""A sweep's table in the order of a column."""

from typing import Any

import pytest

from service.refusals import ApiError
from service.sweeps.order import MAX_NAMED, in_order

K = "model.latent_dim"


def rows(*pairs: tuple[Any, float | None], std_err: float | None = 0.1) -> list[dict[str, Any]]:
    return [
        {"fields": {K: k}, "metrics": {"lml": {"value": lml, "std_err": std_err, "count": 1}}}
        for k, lml in pairs
    ]


@pytest.mark.parametrize(
    ("order_by", "order"),
    [
        (f"{K} asc", [2, 3, 1, 0]),
        (K, [2, 3, 1, 0]),
        (f"{K} desc", [0, 1, 2, 3]),
        ("lml asc", [0, 3, 2, 1]),
        ("lml desc", [2, 3, 0, 1]),
        ("lml std_err desc", [0, 1, 2, 3]),
    ],
)
def test_rows_are_ordered_by_a_field_or_a_metric_and_none_is_last(
    order_by: str, order: list[int]
) -> None:
    table = rows((10, -3.0), (9, None), (2, -1.0), (2, -2.0))
    assert in_order(table, order_by, [K, "lml"]) == order


def test_rows_are_ordered_by_an_error() -> None:
    table = rows((1, -1.0), std_err=0.5) + rows((2, -1.0), std_err=None) + rows((3, -1.0))
    assert in_order(table, "lml std_err", [K, "lml"]) == [2, 0, 1]
    assert in_order(table, "lml std_err desc", [K, "lml"]) == [0, 2, 1]


def test_numbers_are_before_texts_and_lists() -> None:
    assert in_order(rows(("b", 0.0), ([1, 2], 0.0), (3, 0.0), ("a", 0.0)), K, [K]) == [2, 1, 3, 0]


@pytest.mark.parametrize("name", ["lm", "point", "lml count", "mpt std_err"])
def test_an_unknown_column_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ApiError) as refused:
        in_order(rows((1, -1.0)), f"{name} desc", [K, "lml"])
    (problem,) = refused.value.problems
    assert problem.pointer == "/query/order_by"
    assert problem.detail.endswith(f"there are {K}, lml")
    assert ("did you mean lml?" in problem.detail) == (name == "lm")
    with pytest.raises(ApiError) as refused:
        in_order([], "z", [f"m{i}" for i in range(MAX_NAMED + 1)])
    assert refused.value.problems[0].detail.endswith(" and 1 more")
