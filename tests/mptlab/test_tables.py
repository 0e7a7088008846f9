"""Tables of metrics: over seeds, and as people read them."""

from typing import Any

import pytest

from mptlab.tables import comparison, data_note, few_digits, for_people, short_paths


def mean(value: float | None, std_err: float | None, title: str = "mpt") -> dict[str, Any]:
    return {"title": title, "value": value, "std_err": std_err}


def test_only_different_fields_are_compared() -> None:
    one = {"id": "a", "name": "own", "status": "succeeded", "summary": [mean(-1.0, 0.0)]}
    rows = comparison(
        [
            {**one, "spec": {"data": {"n": 1, "source": "x"}, "seeds": [1]}},
            {**one, "spec": {"data": {"n": 2, "source": "x"}, "seeds": [1]}, "summary": []},
        ]
    )
    assert list(rows[0]) == ["id", "name", "status", "data.n", "mpt", "mpt std_err"]
    assert [row["data.n"] for row in rows] == [1, 2]
    assert [row["mpt"] for row in rows] == [-1.0, None]


def test_a_field_that_some_lack_is_shown_as_different() -> None:
    """It also differs from a field that is null; a single experiment differs in nothing."""
    one: dict[str, Any] = {"id": "a", "name": "own", "status": "queued", "summary": []}
    both = [{**one, "spec": {"n": 1, "seed": None}}, {**one, "spec": {"n": 1}}]
    for documents in (both, both[::-1]):
        rows = comparison(documents)
        assert [[*row] for row in rows] == [["id", "name", "status", "seed"]] * 2
    assert [[*row] for row in comparison([{**one, "spec": {"n": 1}}])] == [["id", "name", "status"]]


def test_objects_that_some_lack_show_the_fields_that_differ() -> None:
    one: dict[str, Any] = {"id": "a", "name": "own", "status": "queued", "summary": []}

    def cells(*architectures: Any) -> list[Any]:
        specs = [{"model": {"architecture": value}} for value in architectures]
        rows = comparison([{**one, "spec": spec} for spec in specs])
        return [{key: row[key] for key in row if key not in one} for row in rows]

    path = "model.architecture"
    small, wide = {"layers": 1, "size": 32}, {"layers": 1, "size": 64}
    assert cells(small, wide) == [{f"{path}.size": 32}, {f"{path}.size": 64}]
    assert cells(None, small) == [{path: None}, {path: small}]
    assert cells(None, small, wide) == [{path: None}, {path: {"size": 32}}, {path: {"size": 64}}]


def test_a_comparison_says_which_data_differ() -> None:
    def of(*specs: dict[str, Any]) -> str | None:
        return data_note([{"spec": spec} for spec in specs])

    spec = {"data": {"source": "ppca", "n": 50, "seed": 0}, "seeds": [1], "model": {"k": 1}}
    assert of(spec, spec | {"model": {"k": 2}}, spec | {"seeds": [2]}) is None
    note = of(spec, spec | {"data": {"source": "ppca", "n": 60, "seed": 0}})
    assert note == "The data differ (data.n): their metrics do not tell which model is better."
    each = spec | {"data": {"source": "ppca", "seed": "run"}}  # each seed draws its own data
    assert of(each, each) is None
    assert "(seeds)" in (of(each, each | {"seeds": [2]}) or "")


@pytest.mark.parametrize(
    ("value", "std_err", "cell"),
    [
        (-60.34567891, 0.0123, "-60.346 ± 0.012"),
        (-60.34567891, 0.0, "-60.3457"),
        (-60.34567891, 12.3, "-60 ± 12"),
        (4.2e-10, 5.8e-11, "4.2e-10 ± 5.8e-11"),
        (None, 0.1, None),
    ],
)
def test_a_metric_is_a_single_cell_with_the_digits_of_its_error(
    value: float | None, std_err: float, cell: str | None
) -> None:
    name = "mpt[model=a]"
    row = {"point": 0, "experiment_id": "a", name: value, f"{name} std_err": std_err}
    assert for_people([row | {f"{name} count": 3}]) == [{"point": 0, name: cell}]


def test_measures_of_rows_and_texts_have_few_digits() -> None:
    row = {"row": 3, "id": "007", "p_value": 1.544821e-35, "pll": -0.007683095, "log": -153.268}
    short = {"row": 3, "id": "007", "p_value": "1.5e-35", "pll": "-0.00768", "log": "-153.27"}
    assert few_digits(row) == short


def test_fields_with_the_same_last_part_keep_their_paths() -> None:
    paths = ["model.latent_dim", "data.latent_dim", "data.n"]
    assert list(short_paths(paths).values()) == ["model.latent_dim", "data.latent_dim", "n"]
