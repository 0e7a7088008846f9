"""A wrong request gets a problem that names the field and what is allowed, in terms that users
know. Nothing of it is stored, and the answer stays short however much is wrong."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from mptcore.specs import MAX_PROBLEMS, Problem, parse_json
from mptcore.specs.parsing.sentences import PATTERNS
from service.db.errors import DISK_FULL
from service.experiments.models import Experiment
from service.refusals import MAX_DETAIL, MAX_ITEM_DETAIL, invalid
from service.web.errors import SERVICE_PATTERNS, cannot_write, problem_response
from tests.support.callers import database_of
from tests.support.ppca_spec import ppca_spec

PROBLEM = "application/problem+json"
JSON = {"Content-Type": "application/json"}
SPEC = ppca_spec()
TEXT = json.dumps({"spec": SPEC})
MASKS = "/spec/evaluate/masks"


@pytest.fixture
def api(shared_api: TestClient) -> Iterator[TestClient]:
    """Nothing is stored by the requests of a test."""
    before = stored(shared_api)
    yield shared_api
    assert stored(shared_api) == before


def stored(api: TestClient) -> int:
    with database_of(api).snapshot() as session:
        return session.query(Experiment).count()


def details(answer: Any) -> dict[str, str]:
    """Return the details of a refusal by their pointers."""
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == PROBLEM
    problem = answer.json()
    assert problem["reason"] == "invalid_request"
    assert problem["request_id"] == answer.headers["x-request-id"]
    return {one["pointer"]: one["detail"] for one in problem["errors"]}


# The field, and what is allowed there. All rules of specs have tests in mptcore.


@pytest.mark.parametrize(
    ("spec", "pointer", "words"),
    [
        (ppca_spec(model__colour=1), "/spec/model/colour", "family"),
        ({**SPEC, "sedes": [1]}, "/spec/sedes", "did you mean seeds?"),
        (ppca_spec(model__family="bert"), "/spec/model/family", "'ppca'"),
        (ppca_spec(model__family=...), "/spec/model/family", ""),
        (ppca_spec(data=...), "/spec/data", "required"),
        (ppca_spec(data__n="10"), "/spec/data/n", "without quotes"),
        (ppca_spec(data__n=True), "/spec/data/n", "integer"),
        (ppca_spec(data__n=2**70), "/spec/data/n", "too large"),
        ({**SPEC, "seeds": 4}, "/spec/seeds", "write [4]"),
        (ppca_spec(model__noise_precision=4.0), "/spec/model/noise_precision", "5.0"),
        (ppca_spec(data__n=50_000_000), "/spec/data", "at most 200000000"),
        (
            ppca_spec(data__dim=40, evaluate__masks={"schedule": "all", "design": "exhaustive"}),
            f"{MASKS}/design",
            "at most 100000",
        ),
        ([], "/spec", "object"),
        (None, "/spec", "object"),
    ],
)
def test_a_wrong_spec_is_refused_by_its_field(
    api: TestClient, spec: Any, pointer: str, words: str
) -> None:
    for path in ("/v1/experiments", "/v1/experiments:validate"):
        by_pointer = details(api.post(path, json={"spec": spec}))
        assert words in by_pointer[pointer]


def beside(member: str) -> str:
    """A submission with one more member."""
    return TEXT.replace("{", f"{{{member}, ", 1)


BAD_BODIES: dict[str, tuple[str | bytes, str, str]] = {
    "invalid JSON": (b'{"spec": ', "", "not valid JSON"),
    "NaN": (TEXT.replace("5.0", "NaN", 1), "/spec/model/noise_precision", "finite"),
    "overflow": (TEXT.replace("5.0", "1e999", 1), "/spec/model/noise_precision", "finite"),
    "too deep": ("[" * 100_000, "", "20 levels"),
    "U+0000": (r'{"name": "a\u0000"}', "/name", "U+0000"),
    "a lone surrogate in a key": (r'{"a\ud800": 1}', "", "surrogate"),
    "beyond 2^63": (TEXT.replace("[4]", f"[{2**63}]"), "/spec/seeds/0", "2^63 - 1"),
    "beyond Python's digits": (TEXT.replace("[4]", f"[{'9' * 5000}]"), "", "too large"),
    "not UTF-8": (b'{"name": "\xff"}', "", "UTF-8"),
    "a key twice": (b'{"name": "a", "name": "b"}', "", "once"),
    "an array": (json.dumps([SPEC]), "", "object"),
    "a spec alone": (json.dumps(SPEC), "/spec", "wrap the spec"),
    "an unknown field": (beside('"colour": 1'), "/colour", "allowed"),
    "an empty name": (beside('"name": ""'), "/name", "at least 1"),
    "a name that is a number": (beside('"name": 5'), "/name", "in quotes"),
    "no boolean": (beside('"cache": "no"'), "/cache", "did you mean false?"),
    "a long text": (beside(f'"priority": "{"x" * 99}"'), "/priority", "99 characters"),
    "priority beyond its range": (beside('"priority": 201'), "/priority", "200"),
    "no id": (beside('"after": ["a/b"]'), "/after/0", "the id of an experiment"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_wrong_body_is_refused_by_its_field(api: TestClient, name: str) -> None:
    body, pointer, words = BAD_BODIES[name]
    assert words in details(api.post("/v1/experiments", content=body, headers=JSON))[pointer]


def test_a_body_without_its_type_is_refused(api: TestClient) -> None:
    """With only -d, curl does not send the JSON content type."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for headers in (form, {}):
        by_pointer = details(api.post("/v1/experiments", content=TEXT, headers=headers))
        assert "application/json" in by_pointer["/header/Content-Type"]
    assert "missing" in details(api.post("/v1/experiments"))[""]
    by_pointer = details(api.post("/v1/datasets?name=a.npy", files={"file": ("a.npy", b"x")}))
    assert "curl --data-binary @FILE" in by_pointer["/header/Content-Type"]


def test_a_body_with_a_byte_order_mark_is_read(api: TestClient) -> None:
    content = TEXT.encode("utf-8-sig")
    answer = api.post("/v1/experiments:validate", content=content, headers=JSON)
    assert answer.json()["spec"]["model"]["family"] == "ppca"


def test_a_body_over_the_limit_is_refused_with_it(api: TestClient) -> None:
    answer = api.post("/v1/experiments", content=json.dumps({"note": "x" * 300_000}), headers=JSON)
    assert answer.status_code == 413
    assert "262144 bytes" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "pointer", "words"),
    [
        ("limit=0", "limit", "1"),
        ("limit=501", "limit", "500"),
        ("limit=x", "limit", "an integer, not 'x'"),
        ("limit=9223372036854775808", "limit", ""),
        ("limit=5&limit=6", "limit", ""),
        ("fields=full&limit=51", "limit", "50"),
        ("cursor=%ff", "cursor", ""),
        ("cursor=AA", "cursor", ""),
        ("status=lost", "status/0", "'queued', 'running'"),
        ("family=vae&family=vea", "family", "did you mean vae?"),
        ("created_after=yesterday", "created_after", ""),
        ("filter=stats%3D1", "filter", "status"),
        (f"filter={'a' * 2001}", "filter", "2000"),
        ("order_by=colour", "order_by", "there are"),
        ("whose=all,mine", "whose", "'mine'"),
        ("stauts=failed", "stauts", "did you mean status?"),
    ],
)
def test_a_wrong_query_is_refused_by_its_parameter(
    api: TestClient, query: str, pointer: str, words: str
) -> None:
    ((where, detail),) = details(api.get(f"/v1/experiments?{query}")).items()
    assert where == f"/query/{pointer}"
    assert words in detail


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


def test_every_pattern_is_explained_in_words(api: TestClient) -> None:
    used = set(patterns(api.get("/openapi.json").json()))
    assert used
    assert used <= PATTERNS.keys() | SERVICE_PATTERNS.keys()
    for name, words in (("a.doc", "csv, tsv, parquet"), ("a.csv.gz", "decompress"),
                        ("%C3%A9.csv", "letters, digits")):  # fmt: skip
        assert words in details(api.post(f"/v1/datasets?name={name}", content=b"x"))["/query/name"]
    assert "small letters" in details(api.post("/v1/users", json={"name": "Ann B"}))["/name"]


@pytest.mark.parametrize(
    "address",
    ["http://169.254.169.254/latest", "//10.0.0.1/x", "file:///etc/passwd", "../../etc/passwd"],
)
def test_no_field_of_a_spec_accepts_an_address(api: TestClient, address: str) -> None:
    model = {"family": "masked_lm", "checkpoint": "bert-base-uncased"}
    masks = {"masks": {"schedule": "rates", "rates": [0.15]}}
    text = {"model": model, "data": {"source": "glue"}, "evaluate": masks}
    upload = {"source": "upload", "dataset": address}
    for pointer, spec in (
        ("/spec/model/checkpoint", {**text, "model": {**model, "checkpoint": address}}),
        ("/spec/data/file", {**text, "data": {"source": "text", "file": address}}),
        ("/spec/data/dataset", ppca_spec(model__init="random", data=upload)),
    ):
        assert pointer in details(api.post("/v1/experiments", json={"spec": spec}))


def test_a_refusal_repeats_nothing_that_may_be_secret(api: TestClient) -> None:
    for body in ({"code": 271828}, {"code": [271828]}, {"code": "a" * 99}, {"key": 271828}):
        answer = api.post("/v1/sign-in", json=body, headers={"Sec-Fetch-Site": "same-origin"})
        assert answer.status_code in (401, 422), answer.text
        assert "271828" not in answer.text
        assert "aaaa" not in answer.text


# Paths and methods


@pytest.mark.parametrize(
    ("method", "path", "how", "status"),
    [
        ("GET", "/v1/experiments", {"headers": {"Authorization": "Bearer x"}}, 401),
        ("GET", "/v1/nothing", {}, 404),
        ("GET", "/nothing", {}, 404),
        ("GET", "/v1/experiments/../curves", {}, 404),
        *(("GET", f"/v1/experiments/{one}", {}, 404) for one in ("x", "a b", "%00", "é", "1" * 99)),
        ("POST", "/v1/experiments/x:cancel", {}, 404),
        ("DELETE", "/v1/presets", {}, 405),
        ("POST", "/v1/curves:batchGet", {"json": {}}, 422),
    ],
)
def test_every_refusal_is_a_problem(
    api: TestClient, method: str, path: str, how: Any, status: int
) -> None:
    answer = api.request(method, path, **how)
    assert answer.status_code == status
    assert answer.headers["content-type"] == PROBLEM
    fields = {"title", "status", "detail", "reason", "errors", "error_count", "request_id"}
    assert fields == set(answer.json())
    if "nothing" in path:
        assert "/openapi.json" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/v1/experiments/", "/v1/sweeps/", "/openapi.json/"])
def test_a_path_with_an_extra_slash_is_unknown(api: TestClient, path: str) -> None:
    """A redirect would lead to the address in the header Host."""
    answer = api.get(path, headers={"Host": "evil.example"}, follow_redirects=False)
    assert answer.status_code == 404
    assert "evil" not in answer.text
    assert "location" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/queue", "GET, HEAD"),
        ("PUT", "/v1/experiments", "GET, HEAD, POST"),
        ("PUT", "/v1/experiments/a", "DELETE, GET, HEAD, PATCH"),
        ("GET", "/v1/experiments/a:cancel", "POST"),
        ("POST", "/help", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_refused_with_the_allowed_ones(
    api: TestClient, method: str, path: str, allowed: str
) -> None:
    answer = api.request(method, path)
    assert answer.status_code == 405
    assert ", ".join(sorted(answer.headers["Allow"].split(", "))) == allowed
    assert answer.headers["Allow"] in answer.json()["detail"]


# Very much is wrong


WRONG = [{"spec": SPEC, "priority": "x"}] * 600 + [{"spec": SPEC}]


@pytest.mark.parametrize(
    ("path", "body", "count", "pointer"),
    [
        ("/v1/experiments:batch", {"experiments": WRONG}, 600, "/experiments/99/priority"),
        ("/v1/sweeps", {"spec": SPEC, "list": [{"A": 1, "B": 2}] * 300}, 600, "/list/49/B"),
        ("/v1/sweeps", b"[" + b"NaN, " * 5000 + b"1]", 5000, "/99"),
        ("/v1/experiments", {f"x{i}": 1 for i in range(200)}, 201, "/x98"),
        ("/v1/experiments", {"spec": ppca_spec(seeds=["x"] * 900)}, 900, "/spec/seeds/99"),
        ("/v1/curves:batchGet", {"ids": [1] * 1000}, 1000, "/ids/99"),
    ],
)
def test_an_answer_lists_a_hundred_errors_and_counts_all(
    api: TestClient, path: str, body: Any, count: int, pointer: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body)
    answer = api.post(path, content=content, headers=JSON)
    problem = answer.json()
    assert (answer.status_code, problem["error_count"]) == (422, count)
    assert len(problem["errors"]) == MAX_PROBLEMS
    assert problem["errors"][-1]["pointer"] == pointer
    assert len(answer.content) < 100_000
    assert len(problem["detail"]) <= MAX_DETAIL
    assert problem["detail"].endswith(" more")


LARGE = {
    "experiments": [{"spec": SPEC, **{f"prioritx{i}": 1 for i in range(150)}}] * 1000,
    "paths": {
        "spec": SPEC,
        "list": [{f"model.a{i}.{j}": 1 for j in range(10)} for i in range(9000)],
    },
    "points": {"spec": SPEC, "grid": {"model.latent_dim": ["x"] * 10_000}},
    "seeds": {"spec": ppca_spec(seeds=["x"] * 150_000), "grid": {"data.seed": [1]}},
    "keys": {f"a{i}": 1 for i in range(150_000)},
}


@pytest.mark.parametrize("name", LARGE)
def test_the_largest_wrong_bodies_get_a_short_answer(api: TestClient, name: str) -> None:
    path = "/v1/experiments:batch" if name == "experiments" else "/v1/sweeps"
    answer = api.post(path, json=LARGE[name])
    assert (answer.status_code, len(answer.content) <= 2**18) == (422, True)
    assert answer.json()["errors"]


def test_errors_of_the_query_and_long_texts_are_bounded_too(api: TestClient) -> None:
    problem = api.get("/v1/experiments?" + "&".join(f"x{i}=1" for i in range(150))).json()
    assert (problem["error_count"], len(problem["errors"])) == (150, MAX_PROBLEMS)
    assert len(problem["detail"]) <= MAX_DETAIL
    name = "x" * 5000
    answer = problem_response(invalid([Problem(f"/{name}", f"not {name}")]))
    (item,) = json.loads(bytes(answer.body))["errors"]
    assert len(item["pointer"]) == len(item["detail"]) == MAX_ITEM_DETAIL


def test_the_largest_allowed_requests_are_read() -> None:
    """A sweep of 10,000 points of ten fields, and a batch of 1,000 full submissions."""
    points = [{f"model.field_{j}": 0.5 for j in range(10)}] * 10_000
    whole = {"spec": SPEC, "name": "a", "tags": ["b"] * 10, "note": "c", "after": ["d"] * 10}
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


# Not the request is wrong, but the service


def test_a_database_that_cannot_write_says_whether_to_try_again() -> None:
    full, other = cannot_write(DISK_FULL), cannot_write("the disk is read-only")
    assert (full.status, full.reason, full.headers) == (507, "disk_full", None)
    assert (other.status, other.reason) == (503, "database_unavailable")
    assert other.headers is not None
    assert int(other.headers["Retry-After"]) > 0


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_database_outage_is_not_an_internal_error(
    api: TestClient, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("select 1", {}, Exception("connection refused"))

    with monkeypatch.context() as outage:
        outage.setattr("service.db.engine.Database.transaction", away)
        outage.setattr("service.db.engine.Database.snapshot", away)
        answer = api.request(method, "/v1/experiments", json={"spec": SPEC})
    assert (answer.status_code, answer.json()["reason"]) == (503, "database_unavailable")
    assert int(answer.headers["Retry-After"]) > 0
