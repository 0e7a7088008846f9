"""Tables of metrics: over seeds, and as people read them."""

from typing import Any

import pytest

from mptlab.tables import comparison, for_people, summary


def metric(value: float | None, std_err: float | None, **labels: Any) -> dict[str, Any]:
    return {"name": "mpt", "labels": labels, "value": value, "std_err": std_err}


def test_each_metric_is_a_column_with_its_error() -> None:
    found = summary([metric(-1.0, 0.1, seed=1, model="a"), metric(-2.0, 0.2, seed=1, model="b")])
    assert found == {
        "mpt[model=a]": -1.0,
        "mpt[model=a] std_err": 0.1,
        "mpt[model=b]": -2.0,
        "mpt[model=b] std_err": 0.2,
    }


def test_only_different_fields_are_compared() -> None:
    one = {"id": "a", "name": None, "status": "succeeded", "metrics": [metric(-1.0, 0.0)]}
    rows = comparison(
        [
            {**one, "spec": {"data": {"n": 1, "source": "x"}, "seeds": [1]}},
            {**one, "spec": {"data": {"n": 2, "source": "x"}, "seeds": [1]}, "metrics": []},
        ]
    )
    assert list(rows[0]) == ["id", "name", "status", "data.n", "mpt", "mpt std_err"]
    assert [row["data.n"] for row in rows] == [1, 2]
    assert [row["mpt"] for row in rows] == [-1.0, None]


def test_a_field_that_some_lack_is_shown_as_different() -> None:
    """It also differs from a field that is null; a single experiment differs in nothing."""
    one: dict[str, Any] = {"id": "a", "name": None, "status": "queued", "metrics": []}
    both = [{**one, "spec": {"n": 1, "seed": None}}, {**one, "spec": {"n": 1}}]
    for documents in (both, both[::-1]):
        rows = comparison(documents)
        assert [[*row] for row in rows] == [["id", "name", "status", "seed"]] * 2
    assert [[*row] for row in comparison([{**one, "spec": {"n": 1}}])] == [["id", "name", "status"]]


@pytest.mark.parametrize("name", ["mpt", "mpt[model=a]"])
def test_a_metric_is_a_single_cell(name: str) -> None:
    row = {"point": 0, "experiment_id": "a", name: -60.34567891, f"{name} std_err": 0.0123}
    assert for_people([row]) == [{"point": 0, name: "-60.346 ± 0.012"}]
    assert for_people([row | {f"{name} count": 3}]) == [{"point": 0, name: "-60.346 ± 0.012"}]
    exact = {**row, f"{name} std_err": 0.0}
    assert for_people([exact]) == [{"point": 0, name: "-60.3457"}]
    coarse = {**row, f"{name} std_err": 12.3}
    assert for_people([coarse]) == [{"point": 0, name: "-60 ± 12"}]
    assert for_people([{**row, name: None}]) == [{"point": 0, name: None}]
