"""A request in which very much is wrong: the answer lists the first hundred errors and says how
many there are, and no more than these are put into words."""

import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel, ValidationError

from mptcore.specs import MAX_PROBLEMS, Problem, parse_json
from mptcore.specs.parsing import long_lists
from service.refusals import MAX_DETAIL, MAX_ITEM_DETAIL, invalid
from service.submission.requests import Batch
from service.sweeps.schemas import SweepSubmission
from service.web.errors import problem_response
from tests.support.ppca_spec import ppca_spec

HEADERS = {"Content-Type": "application/json"}
WRONG = [{"spec": ppca_spec(), "priority": "x"}] * 600 + [{"spec": ppca_spec()}]
POINTS = {"spec": ppca_spec(), "list": [{"A": 1, "B": 2}] * 300}


def refused(api: TestClient, path: str, body: Any) -> dict[str, Any]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = api.post(path, content=text, headers=HEADERS)
    assert answer.status_code == 422
    assert len(answer.content) < 100_000
    problem: dict[str, Any] = answer.json()
    assert len(problem["detail"]) <= MAX_DETAIL
    return problem


@pytest.mark.parametrize(
    ("path", "body", "count", "pointer"),
    [
        ("/v1/experiments:batch", {"experiments": WRONG}, 600, "/experiments/99/priority"),
        ("/v1/sweeps", POINTS, 600, "/list/49/B"),
        ("/v1/sweeps", b"[" + b"NaN, " * 5000 + b"1]", 5000, "/99"),
        ("/v1/experiments", {f"x{i}": 1 for i in range(200)}, 201, "/x98"),
        ("/v1/experiments", {"spec": ppca_spec(seeds=["x"] * 900)}, 900, "/spec/seeds/99"),
        ("/v1/curves:batchGet", {"ids": [1] * 1000}, 1000, "/ids/99"),
    ],
)
def test_an_answer_lists_a_hundred_errors_and_counts_all(
    api: TestClient, path: str, body: Any, count: int, pointer: str
) -> None:
    problem = refused(api, path, body)
    assert problem["error_count"] == count
    assert len(problem["errors"]) == MAX_PROBLEMS
    assert problem["errors"][-1]["pointer"] == pointer
    more = re.search(r"; and (\d+) more$", problem["detail"])
    assert more is not None
    assert 1 <= count - int(more[1]) <= MAX_PROBLEMS


def test_errors_of_the_query_are_bounded_too(api: TestClient) -> None:
    problem = api.get("/v1/experiments?" + "&".join(f"x{i}=1" for i in range(150))).json()
    assert (problem["error_count"], len(problem["errors"])) == (150, MAX_PROBLEMS)
    assert len(problem["detail"]) <= MAX_DETAIL


def test_few_errors_are_listed_as_they_are(api: TestClient) -> None:
    problem = refused(api, "/v1/experiments", {"spec": ppca_spec(), "a": 1, "b": 2})
    assert problem["error_count"] == 2
    assert [one["pointer"] for one in problem["errors"]] == ["/a", "/b"]
    assert "more" not in problem["detail"]


def test_long_texts_are_cut() -> None:
    name = "x" * 5000
    answer = problem_response(invalid([Problem(f"/{name}", f"not {name}")]))
    (item,) = json.loads(bytes(answer.body))["errors"]
    assert len(item["pointer"]) == len(item["detail"]) == MAX_ITEM_DETAIL


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (Batch, {"experiments": [{"spec": ppca_spec(), "priority": "x"}] * 1000}),
        (SweepSubmission, {"spec": {}, "list": [{"A": 1}] * 1000}),
    ],
)
def test_only_the_first_errors_of_a_long_list_are_listed(
    model: type[BaseModel], value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pydantic needs microseconds for each, and blocks all other threads during this time."""
    located: list[int] = []
    make = long_lists._located

    def noting(i: int, one: Any) -> Any:
        located.append(i)
        return make(i, one)

    monkeypatch.setattr(long_lists, "_located", noting)
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    assert located == [*range(MAX_PROBLEMS)]
    assert caught.value.error_count() == MAX_PROBLEMS + 1


def test_the_largest_allowed_requests_are_accepted() -> None:
    """A sweep of 10,000 points of ten fields, and a batch of 1,000 full submissions, are well
    within the limit."""
    points = [{f"model.field_{j}": 0.5 for j in range(10)}] * 10_000
    whole = {"spec": ppca_spec(), "name": "a", "tags": ["b"] * 10, "note": "c", "after": ["d"] * 10}
    for body in ({"list": points}, {"experiments": [whole] * 1000}):
        assert parse_json(json.dumps(body).encode()) == body


def test_every_list_in_a_body_has_a_limit(api: TestClient) -> None:
    """Each of its items may be an error."""
    document = api.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    seen: set[str] = set()
    unlimited: list[str] = []

    def walk(part: Any, where: str) -> None:
        if isinstance(part, list):
            for one in part:
                walk(one, where)
        if not isinstance(part, dict):
            return
        name = str(part.get("$ref", "")).rpartition("/")[2]
        if name and name not in seen:
            seen.add(name)
            walk(schemas[name], name)
        if part.get("type") == "array" and "maxItems" not in part:
            unlimited.append(where)
        for key, one in part.items():
            walk(one, f"{where}.{key}")

    for path, methods in document["paths"].items():
        for operation in methods.values():
            walk(operation.get("requestBody"), path)
    assert seen >= {"Batch", "SweepSubmission"}
    assert unlimited == []
