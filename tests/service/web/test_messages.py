"""Messages about wrong requests: they state what is allowed, in terms that users know."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from mptcore.specs.parsing.sentences import PATTERNS
from service.web.errors import SERVICE_PATTERNS
from tests.support.ppca_spec import ppca_spec

SPEC = ppca_spec()
DIGITS = {"source": "digits", "n": 5000}
HELD = {"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"}


def told(answer: Any) -> dict[str, str]:
    """Return the details of a refusal by their pointers."""
    document = answer.json()
    return {one["pointer"]: one["detail"] for one in document["errors"]}


@pytest.mark.parametrize(
    ("body", "pointer", "detail"),
    [
        (SPEC, "/spec", 'this field is required: wrap the spec in {"spec": {…}}'),
        ({"spec": {**SPEC, "seeds": 4}}, "/spec/seeds",
         "a list, in brackets: […], not 4: write [4]"),
        ({"spec": {**SPEC, "seeds": ["a"]}}, "/spec/seeds/0", "an integer, not 'a'"),
        ({"spec": ppca_spec(data__n="10")}, "/spec/data/n", "an integer, without quotes"),
        ({"spec": ppca_spec(model__noise_precision="5")}, "/spec/model/noise_precision",
         "a number, without quotes"),
        ({"spec": ppca_spec(data__n=2**70)}, "/spec/data/n",
         "the integer is too large: 64 bits hold those from -2^63 to 2^63 - 1"),
        ({"spec": ppca_spec(data=DIGITS, model=HELD)}, "/spec/data/n", "1797 is the only value"),
        ({"spec": ppca_spec(model__init="random", model__noise_precision=None)},
         "/spec/model/noise_precision",
         "init random needs a number above 0: maximum_likelihood would estimate it"),
        ({"spec": ppca_spec(model__noise_precision=None)}, "/spec/model/noise_precision",
         "init generator takes the data's own noise_precision: 5.0"),
        ({"spec": SPEC, "after": ["a/b"]}, "/after/0",
         "the id of an experiment, from the answer to its submission"),
        ({"spec": SPEC, "name": 5}, "/name", "text, in quotes, not a number"),
        ({"spec": SPEC, "cache": "no"}, "/cache", "true or false, not 'no'; did you mean false?"),
        ({"spec": SPEC, "priority": "x" * 99}, "/priority",
         "an integer, not a text of 99 characters"),
        ({"spec": {**SPEC, "sedes": [1]}}, "/spec/sedes",
         "unknown field; allowed here: baseline, compute, data, evaluate, model, seeds, train; "
         "did you mean seeds?"),
        ({"spec": {**SPEC, "zzz": 1}}, "/spec/zzz",
         "unknown field; allowed here: baseline, compute, data, evaluate, model, seeds, train"),
        ([SPEC], "", "a JSON object, not a list"),
    ],
)  # fmt: skip
def test_a_body_that_is_wrong(api: TestClient, body: Any, pointer: str, detail: str) -> None:
    """The message contains only the cause."""
    answer = api.post("/v1/experiments", json=body)
    assert (answer.status_code, told(answer)) == (422, {pointer: detail})


def test_a_refusal_repeats_nothing_that_may_be_secret(api: TestClient) -> None:
    for body in ({"code": 271828}, {"code": [271828]}, {"code": "a" * 99}, {"key": 271828}):
        answer = api.post("/v1/sign-in", json=body, headers={"Sec-Fetch-Site": "same-origin"})
        assert answer.status_code in (401, 422), answer.text
        assert "271828" not in answer.text
        assert "aaaa" not in answer.text


def test_a_body_without_its_type(api: TestClient) -> None:
    """With only -d, curl does not send the JSON content type."""
    content = json.dumps({"spec": SPEC})
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    expected = {"/header/Content-Type": "send Content-Type: application/json"}
    assert told(api.post("/v1/experiments", content=content, headers=form)) == expected
    assert told(api.post("/v1/experiments", content=content)) == expected
    assert told(api.post("/v1/experiments")) == {
        "": "the body must be a JSON object, but it is missing"
    }


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("limit=x", "an integer, not 'x'"),
        ("status=done", "one of 'queued', 'running', 'paused', 'succeeded', "
         "'failed' or 'cancelled'"),
    ],
)  # fmt: skip
def test_a_query_that_is_wrong(api: TestClient, query: str, detail: str) -> None:
    assert list(told(api.get(f"/v1/experiments?{query}")).values()) == [detail]


def test_patterns_are_explained_in_words(api: TestClient) -> None:
    answer = api.post("/v1/datasets?name=a.doc", content=b"x")
    assert told(answer)["/query/name"].startswith("the ending is one of csv, tsv, parquet, npy")
    answer = api.post("/v1/datasets?name=a.csv.gz", content=b"x")
    assert told(answer)["/query/name"].endswith("not gz: decompress the file first")
    answer = api.post("/v1/datasets?name=%C3%A9.csv", content=b"x")
    assert told(answer)["/query/name"].startswith("a file's name with its ending, such as mine.csv")
    answer = api.post("/v1/users", json={"name": "Ann B"})
    assert told(answer)["/name"].startswith("a user's name: up to 64 small letters")


def patterns(part: Any) -> Iterator[str]:
    match part:
        case dict():
            if isinstance(part.get("pattern"), str):
                yield part["pattern"]
            for inner in part.values():
                yield from patterns(inner)
        case list():
            for inner in part:
                yield from patterns(inner)


def test_every_pattern_has_words(api: TestClient) -> None:
    used = set(patterns(api.get("/openapi.json").json()))
    assert used
    assert used - PATTERNS.keys() - SERVICE_PATTERNS.keys() == set()


def test_an_unknown_path(api: TestClient) -> None:
    answer = api.get("/v1/experiment")
    assert answer.status_code == 404
    assert "/openapi.json" in answer.json()["detail"]


def test_a_wrong_method_for_a_path(api: TestClient) -> None:
    answer = api.delete("/v1/queue")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert answer.json()["detail"] == "DELETE is not allowed here, only GET, HEAD"


def test_a_refused_change_names_the_allowed_ones(api: TestClient) -> None:
    one = api.post("/v1/experiments", json={"spec": SPEC}).json()["id"]
    api.post(f"/v1/experiments/{one}:cancel")
    for verb in ("pause", "resume"):
        answer = api.post(f"/v1/experiments/{one}:{verb}")
        assert answer.status_code == 409
        assert answer.json()["detail"].endswith("is cancelled: it may be retried or deleted")
    answer = api.get("/v1/presets/fig1-left/verdict", params={"experiment": [one]})
    assert told(answer) == {
        "/query/experiment/0": "it is cancelled: a verdict needs succeeded experiments"
    }
    answer = api.get("/v1/presets/fig1-left/verdict", params={"experiment": ["none"]})
    assert told(answer)["/query/experiment/0"].startswith("not one of your experiments")
    answer = api.get("/v1/presets/table1/verdict", params={"experiment": [one]})
    assert told(answer)["/query/experiment"].startswith("table1 has 3 specs: give 3 experiments")


def test_an_upload_as_a_form_is_refused(api: TestClient) -> None:
    answer = api.post("/v1/datasets?name=a.npy", files={"file": ("a.npy", b"x")})
    assert list(told(answer)) == ["/header/Content-Type"]
    assert "curl --data-binary @FILE" in answer.json()["detail"]
