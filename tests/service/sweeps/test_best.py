"""The best row of a sweep's table, and the sentences about it."""

import json
import shlex
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.experiments.models import Metric
from service.records import recording
from service.sweeps.best import (
    OTHER_ROWS,
    SAME_ROWS,
    STANDARDIZED,
    best_of,
    chief_metric,
    conclusion,
    varying,
)
from service.sweeps.models import Sweep
from service.sweeps.pairing import BEHIND_BEST
from tests.support.callers import database_of
from tests.support.ppca_spec import ppca_spec

K = "model.latent_dim"
SPEC = {"model": {"family": "ppca"}, "data": {"dim": 14}}


def cell(value: float | None, std_err: float | None = None) -> dict[str, Any]:
    return {"value": value, "std_err": std_err, "count": 1}


def row(fields: dict[str, Any], **cells: Any) -> dict[str, Any]:
    return {"fields": fields, "metrics": cells}


def rows(*lml: float | None, error: float | None = None, **fields: Any) -> list[dict[str, Any]]:
    return [row({K: k, **fields}, lml=cell(value, error)) for k, value in enumerate(lml, 1)]


def heldout(*lml: float, first: int = 1, step: int = 1) -> list[dict[str, Any]]:
    """Rows whose held-out LML have errors of the difference from the best of 0.1."""
    best = max(lml)
    return [
        row({K: first + i * step}, lml_heldout=cell(value, 9.0),
            **{BEHIND_BEST: cell(best - value, 0.1 if value < best else 0.0)})
        for i, value in enumerate(lml)
    ]  # fmt: skip


def conclude(found: list[dict[str, Any]], *fields: str, spec: Any = SPEC, **base: Any) -> Any:
    sweep = Sweep(id="a" * 32, fields=[*(fields or [K])], spec=base)
    return conclusion(sweep, found, found, spec)


def test_the_best_row_and_those_within_its_error() -> None:
    assert best_of(rows(-3.0, -1.0, None, -1.5)) == ("lml", 1, [])
    assert best_of(rows(-3.0, -1.0, None, -1.5, error=0.2)) == ("lml", 1, [3])
    assert best_of(rows(-3.0, -1.0, -1.5, error=0.17)) == ("lml", 1, [])
    assert best_of(rows(-3.0, None)) is None
    assert best_of([row({K: 1}), row({K: 2})]) is None
    assert best_of(rows(-3.0, -1.0, -1.0 - 1e-7)) == ("lml", 1, [2])  # equal up to rounding


def test_what_was_held_out_decides() -> None:
    found = rows(-3.0, -2.0, -1.0)
    for one, value in zip(found, (-5.0, -4.0, -6.0), strict=True):
        one["metrics"]["lml_heldout"] = cell(value)
    assert best_of(found) == ("lml_heldout", 1, [])


def test_held_out_rows_that_are_shared_tell_which_are_as_good() -> None:
    def of(*behind: tuple[float, float | None]) -> list[dict[str, Any]]:
        return [
            row({K: k}, lml_heldout=cell(-lack, 9.0), **{BEHIND_BEST: cell(lack, error)})
            for k, (lack, error) in enumerate(behind, 2)
        ]

    found = of((0.5, 0.26), (0.0, 0.0), (0.5, 0.24), (0.5, None))
    made = conclude(found)
    assert made["best"] == {
        "metric": "lml_heldout", "label": "LML, held out", "row": 1, "alike": [0], "smallest": 0,
        "fields": [K],
    }  # fmt: skip
    assert made["notes"] == [
        "Best by LML, held out: K = 3; within two standard errors: K = 2",
        "The smallest model as good as the best: K = 2",
        OTHER_ROWS,
    ]
    families = [
        row(one["fields"] | {"model.family": family}, **one["metrics"])
        for one, family in zip(found, ("ppca", "ppca", "factor_analysis", "ppca"), strict=True)
    ]
    smallest = conclude(families, K, "model.family")["notes"][1]
    assert smallest == "The smallest model as good as the best: K = 2, model.family = ppca"
    alone = conclude(of((0.5, 0.1), (0.0, 0.0), (0.6, 0.1)))
    assert (alone["best"]["smallest"], len(alone["notes"])) == (None, 2)
    near, far = (0.5, 0.26), (0.5, 0.24)
    ranges = [
        (((0.0, 0.0), near, near, near, near), "K = 3 to 6"),
        ((far, near, (0.0, 0.0), near, near), "K = 3 to 6"),
        ((near, far, (0.0, 0.0), near, near), "K = 2; K = 5; K = 6"),
        (((0.0, 0.0), near, near), "K = 3; K = 4"),
    ]
    for points, alike in ranges:
        assert conclude(of(*points))["notes"][0].endswith(f"two standard errors: {alike}")
    assert best_of(of((0.0, 0.0), (0.5, 0.24), (0.0, 0.0), (0.5, 0.26))) == (
        "lml_heldout", 0, [2, 3],
    )  # fmt: skip


def test_the_lml_of_the_fitted_data_rises_with_the_latent_dimensions() -> None:
    """It says nothing about more of them, so that the last value is no edge."""
    assert conclude(rows(-3.0, -2.0, -1.0))["notes"] == ["Best by LML: K = 3", SAME_ROWS]
    epochs = [row({"train.epochs": n}, lml=cell(-1.0 / n)) for n in (1, 2)]
    assert conclude(epochs, "train.epochs")["notes"] == ["Best by LML: train.epochs = 2"]


@pytest.mark.parametrize(
    ("found", "dim", "note"),
    [
        (heldout(-3.0, -2.0, -1.0), 14, "K = 3 is the last value: extend to 6"),
        (heldout(-3.0, -2.0, -1.0), 6, "K = 3 is the last value: extend to 5"),
        (heldout(-3.0, -2.0, -1.0), 4, None),
        (heldout(-3.0, -1.0, -2.0), 14, None),
        (heldout(-1.0, -2.0, -3.0), 14, None),
        (heldout(-1.0, -2.0, first=3), 14, "K = 3 is the first value: extend to 1"),
        (heldout(-2.0, -1.0, first=2, step=2), 14, "K = 4 is the last value: extend to 8"),
        (heldout(-1.0), 14, None),
    ],
)
def test_the_best_k_at_the_edge_of_its_range_is_said(
    found: list[dict[str, Any]], dim: int, note: str | None
) -> None:
    spec = {"model": {"family": "ppca"}, "data": {"dim": dim}}
    told = [one for one in conclude(found, spec=spec)["notes"] if one.startswith("K = ")]
    assert [one.partition(": mpt")[0] for one in told] == ([note] if note else [])


def test_six_is_extended_to_twelve_with_the_command() -> None:
    made = conclude(heldout(-6.0, -5.0, -4.0, -3.0, -2.0, -1.0))
    assert made["extension"] == {K: [7, 8, 9, 10, 11, 12]}
    note = made["notes"][-1]
    assert note == f"K = 6 is the last value: extend to 12: mpt extend {'a' * 32} --over {K}=7..12"
    several = [
        row({**one["fields"], "model.family": family}, **one["metrics"])
        for one in heldout(-2.0, -1.0, first=2, step=2)
        for family in ("ppca", "factor_analysis")
    ]
    made = conclude(several, K, "model.family")
    assert made["extension"] == {K: [6, 8], "model.family": ["ppca", "factor_analysis"]}
    note = made["notes"][-1]
    words = shlex.split(note.partition("extend to 8: ")[2])
    assert words == [
        "mpt", "extend", "a" * 32, "--over", f"{K}=6,8",
        "--over", 'model.family=["ppca","factor_analysis"]',
    ]  # fmt: skip
    made = conclude(several[1:], K, "model.family")  # no grid
    assert made["extension"] is None
    assert made["notes"][-1].endswith("extend to 8")


def test_nothing_is_best_among_different_data() -> None:
    found = [*rows(-3.0, -1.0, **{"data.n": 50}), *rows(-4.0, -2.0, **{"data.n": 60})]
    made = conclude(found, K, "data.n")
    assert made["best"] is None
    assert made["notes"] == ["No row is the best, because the data differ: data.n"]
    each = {"model": {"family": "ppca"}, "data": {"dim": 14, "seed": "run"}}  # draws its own data
    pooled = rows(-3.0, -1.0)

    def of_seeds(*seeds: int) -> Any:
        points = [row({K: k, "seeds": [seed]}) for k, seed in zip((1, 1, 2, 2), seeds, strict=True)]
        sweep = Sweep(id="a" * 32, fields=[K, "seeds"], spec={})
        return conclusion(sweep, pooled, points, each)

    assert of_seeds(1, 2, 2, 1)["best"]["row"] == 1
    assert of_seeds(1, 2, 3, 4)["notes"] == ["No row is the best, because the data differ: seeds"]
    same = conclude(rows(-3.0, -1.0, **{"data.n": 50}), K, "data.n")
    assert same["best"]["fields"] == [K]


def test_nothing_is_best_where_only_the_measurement_differs() -> None:
    per_size = "evaluate.masks.per_size"
    found = [row({per_size: masks}, lml=cell(-1.0), mpt=cell(-1.0)) for masks in (4, 16)]
    assert conclude(found, per_size) == {"best": None, "notes": [], "extension": None}
    assert chief_metric(["lml", "mpt"], [per_size]) == "mpt"
    assert chief_metric(["lml", "mpt"], [per_size, K]) == "lml"
    assert chief_metric(["lml", "mpt", "lml_heldout"], [K]) == "lml_heldout"
    assert chief_metric(["bias", "masks"], ["seeds"]) == "bias"
    assert chief_metric([], [K]) is None


def test_results_of_standardized_values_say_so() -> None:
    made = conclude(rows(-3.0, -1.0), data={"standardize": "columns"})
    assert made["notes"][-1] == STANDARDIZED


def test_fields_that_do_not_tell_rows_apart_are_not_named() -> None:
    found = [row({K: k, "train.epochs": 10 * k, "data.n": 5}) for k in (1, 2, 3)]
    fields = [K, "train.epochs", "data.n"]
    assert varying(found, fields) == [fields[:2]]
    crossed = [*found, row({K: 1, "train.epochs": 20, "data.n": 5})]
    assert varying(crossed, fields) == [[K], ["train.epochs"]]


def test_a_table_has_its_best_row_over_seeds(api: TestClient) -> None:
    spec = ppca_spec(model__init="random")
    grid = {"seeds": [[1], [2]], K: [1, 2]}
    made = api.post("/v1/sweeps", json={"spec": spec, "grid": grid}).json()
    table = api.get(made["urls"]["table"]).json()
    assert (table["best"], table["notes"], table["chief_metric"]) == (None, [], None)
    values = {(1, 1): -9.0, (1, 2): -5.0, (2, 1): -4.0, (2, 2): -6.0}
    with database_of(api).transaction() as session:
        for one in table["items"]:
            seed, k = one["fields"]["seeds"][0], one["fields"][K]
            for labels, value in (({}, values[seed, k]), ({"epoch": 0}, -100.0)):
                text = recording.canonical({"seed": seed, **labels})
                session.add(Metric(experiment_id=one["experiment_id"], name="lml", labels=text,
                                   seq=2 - len(labels), value=value, std_err=0.0))  # fmt: skip
    table = api.get(made["urls"]["table"]).json()
    assert table["metrics"] == ["lml", "lml[epoch=0]"]  # the final one first
    assert [*table["pooled"][0]["metrics"]] == ["lml", "lml[epoch=0]"]
    best = table["best"]
    assert (best["metric"], table["chief_metric"], table["varying"]) == ("lml", "lml", [[K]])
    assert table["pooled"][best["row"]]["fields"] == {K: 2}
    assert table["pooled"][best["row"]]["metrics"]["lml"]["value"] == -5.5
    assert table["notes"][0].startswith("Best by LML: K = 2")
    assert json.dumps(table)  # no value of Python's own
    query = {"order_by": "lml asc"}
    ordered = api.get(made["urls"]["table"], params=query).json()
    assert [row["fields"][K] for row in ordered["pooled"]] == [1, 2]
    assert [row["point"] for row in ordered["items"]] == [0, 3, 1, 2]
    assert ordered["pooled"][ordered["best"]["row"]]["fields"] == {K: 2}
    query = {"order_by": "lml desc"}
    ordered = api.get(made["urls"]["table"], params=query).json()
    assert [row["fields"][K] for row in ordered["pooled"]] == [2, 1]
    assert ordered["pooled"][ordered["best"]["row"]]["fields"] == {K: 2}
    assert ordered["notes"] == table["notes"]
    for form in ("points", "long"):
        csv = api.get(made["urls"]["table"], params={**query, "format": "csv", "form": form}).text
        points = dict.fromkeys(line.split(",")[0] for line in csv.splitlines()[1:])
        assert [*points] == ["2", "1", "3", "0"]
    assert api.get(made["urls"]["table"], params={"order_by": "other"}).status_code == 422
