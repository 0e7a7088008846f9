"""Answers with many metrics are made without an object for each."""

import json
from collections import Counter
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.schemas import ResponseModel
from service.sweeps import views
from service.web.media_types import plain_json
from tests.service.sweeps.test_sweeps import measure, rows, sweep


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The numbers of objects of response models that are made, by their class."""
    found: Counter[str] = Counter()
    construct = ResponseModel.model_construct.__func__  # type: ignore[attr-defined]

    def constructed(cls: Any, *arguments: Any, **fields: Any) -> Any:
        found[cls.__name__] += 1
        return construct(cls, *arguments, **fields)

    def begun(self: Any, /, **fields: Any) -> None:
        found[type(self).__name__] += 1
        super(ResponseModel, self).__init__(**fields)

    monkeypatch.setattr(ResponseModel, "model_construct", classmethod(constructed))
    monkeypatch.setattr(ResponseModel, "__init__", begun)
    return found


def test_a_table_and_pages_of_metrics_are_not_objects(api: TestClient, made: Counter[str]) -> None:
    of = sweep(api, grid={"seeds": [[1], [2]]})
    ids = [row["experiment_id"] for row in rows(api, of["id"])]
    for one in ids:
        measure(api, one, *[float(i) for i in range(20)])
    made.clear()
    table, metrics = of["urls"]["table"], f"/v1/experiments/{ids[0]}/metrics"
    for form in ("", "?format=csv", "?format=csv&form=long", "?format=csv&form=pooled"):
        assert api.get(table + form).status_code == 200
    assert made["TableRow"] + made["PooledRow"] + made["MetricCell"] == 0
    assert len(api.post("/v1/experiments:batchGet", json={"ids": ids}).json()["items"]) == 2
    page = api.get("/v1/experiments?metrics=mpt").json()
    assert [len(one["metrics"]) for one in page["items"]] == [20, 20]
    assert len(api.get(metrics).json()["items"]) == 20
    assert api.get(f"/v1/experiments/{ids[0]}").json()["id"] == ids[0]
    assert api.get(f"/v1/experiments/{ids[0]}").json()["id"] == ids[0]
    assert made["MetricOut"] == 0
    assert made["Urls"] > 0


def test_metrics_have_the_form_of_the_contract(api: TestClient) -> None:
    one = rows(api, sweep(api, grid={"seeds": [[1]]})["id"])[0]["experiment_id"]
    measure(api, one, -1.5, None)
    expected = [
        {"name": "mpt", "labels": {"seed": i}, "value": value, "std_err": 0.5, "reason": None}
        for i, value in enumerate((-1.5, None))
    ]
    (item,) = api.post("/v1/experiments:batchGet", json={"ids": [one]}).json()["items"]
    (listed,) = api.get("/v1/experiments?metrics=mpt").json()["items"]
    assert item["metrics"] == listed["metrics"] == expected
    assert api.get(f"/v1/experiments/{one}/metrics").json()["items"] == expected


def test_an_integer_of_more_than_64_bits_is_written() -> None:
    answer = {"fields": {"data.n": 2**70}}
    assert json.loads(bytes(plain_json(answer).body)) == answer


def test_each_form_of_a_table_computes_only_its_means(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long form has no means, and only JSON and the pooled form have those of pooled points."""
    of = sweep(api, grid={"seeds": [[1], [2]]})
    for row in rows(api, of["id"]):
        measure(api, row["experiment_id"], 1.0)
    counts: list[int] = []
    mean_of = vars(views)["mean_of"]

    def counted(name: str, values: Any, errors: Any) -> Any:
        counts.append(len(values))
        return mean_of(name, values, errors)

    monkeypatch.setattr(views, "mean_of", counted)
    forms = {"": [1, 1, 2], "points": [1, 1], "long": [], "pooled": [1, 1, 2]}
    for form, expected in forms.items():
        counts.clear()
        assert api.get(of["urls"]["table"] + (form and f"?format=csv&form={form}")).is_success
        assert counts == expected, form
