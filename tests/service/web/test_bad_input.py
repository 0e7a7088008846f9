"""Every bad request gets a problem that names the field, and nothing is stored."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from service.db.engine import Database
from service.experiments.models import Event, Experiment
from service.settings import Settings
from tests.support.ppca_spec import ppca_spec

MASKS = "/spec/evaluate/masks"

BAD_SPECS = {
    "unknown field": (ppca_spec(model__colour=1), "/spec/model/colour", "family"),
    "unknown family": (ppca_spec(model__family="bert"), "/spec/model/family", "'ppca'"),
    "no family": (ppca_spec(model__family=...), "/spec/model/family", ""),
    "unknown source": (ppca_spec(data__source="x"), "/spec/data/source", "'ppca', 'digits'"),
    "no data": (ppca_spec(data=...), "/spec/data", "required"),
    "wrong type": (ppca_spec(model__latent_dim="2"), "/spec/model/latent_dim", "integer"),
    "a boolean for a number": (ppca_spec(data__n=True), "/spec/data/n", "integer"),
    "K = D": (
        ppca_spec(model__latent_dim=6, model__init="random"),
        "/spec/model/latent_dim",
        "at most 5, fewer",
    ),
    "mask size > D": (
        ppca_spec(evaluate__masks={"schedule": "fixed", "size": 7}),
        f"{MASKS}/size",
        "from 1 to the data's 6",
    ),
    "a listed size > D": (
        ppca_spec(evaluate__masks={"schedule": "sizes", "sizes": [1, 7]}),
        f"{MASKS}/sizes/1",
        "from 1 to the data's 6",
    ),
    "P = 0": (ppca_spec(evaluate__masks__per_size=0), f"{MASKS}/per_size", "at least|equal to 1"),
    "rate 0": (
        ppca_spec(evaluate__masks={"schedule": "fixed", "rate": 0}),
        f"{MASKS}/rate",
        "greater than 0",
    ),
    "rate > 1": (
        ppca_spec(evaluate__masks={"schedule": "fixed", "rate": 1.01}),
        f"{MASKS}/rate",
        "less than or equal to 1",
    ),
    "exhaustive beyond its limit": (
        ppca_spec(data__dim=40, evaluate__masks={"schedule": "all", "design": "exhaustive"}),
        f"{MASKS}/design",
        "at most 100000",
    ),
    "unlike the generator": (
        ppca_spec(model__noise_precision=4.0),
        "/spec/model/noise_precision",
        "5.0",
    ),
    "digits have no generator": (
        ppca_spec(data={"source": "digits"}),
        "/spec/model/init",
        "random or maximum_likelihood",
    ),
    "N · D": (ppca_spec(data__n=50_000_000), "/spec/data", "at most 200000000"),
    "P · D² · K": (
        ppca_spec(
            data__dim=5000,
            model__latent_dim=50,
            model__init="random",
            evaluate__masks__per_size=10_000,
        ),
        f"{MASKS}/per_size",
        "at most 28.9 are accepted",
    ),
    "exhaustive for very many dimensions": (
        ppca_spec(
            data__dim=1_000_000,
            data__n=1,
            evaluate__masks={"schedule": "all", "design": "exhaustive"},
        ),
        f"{MASKS}/design",
        "at most 100000",
    ),
    "convergence of all masks": (
        ppca_spec(evaluate__masks__design="exhaustive", evaluate__convergence=True),
        "/spec/evaluate/convergence",
        "drawn",
    ),
    "a large baseline": (
        ppca_spec(
            data__dim=10_000,
            evaluate__masks={"schedule": "fixed", "size": 1, "per_size": 1},
            baseline={"family": "ppca", "latent_dim": 9_999, "noise_precision": 1.0},
        ),
        "/spec/data",
        "MiB",
    ),
    "a list for a seed": (ppca_spec(data__seed=[1]), "/spec/data/seed", "run|integer"),
    "no seeds": (ppca_spec(seeds=[]), "/spec/seeds", "at least 1"),
    "a seed twice": (ppca_spec(seeds=[1, 1]), "/spec/seeds", "once"),
    "not an object": ([], "/spec", "object"),
    "null": (None, "/spec", "object"),
}

SPEC = json.dumps({"spec": ppca_spec()})


def beside(member: str) -> str:
    """A submission with one more member."""
    return SPEC.replace("{", f"{{{member}, ", 1)


BAD_BODIES: dict[str, tuple[str | bytes, str, str]] = {
    "invalid JSON": (b'{"spec": ', "", "not valid JSON"),
    "NaN": (SPEC.replace("5.0", "NaN", 1), "/spec/model/noise_precision", "finite"),
    "Infinity": (SPEC.replace("5.0", "-Infinity", 1), "/spec/model/noise_precision", "finite"),
    "overflow": (SPEC.replace("5.0", "1e999", 1), "/spec/model/noise_precision", "finite"),
    "too deep": ("[" * 21 + "]" * 21, "", "20 levels"),
    "absurdly deep": ("[" * 100_000, "", "20 levels"),
    "U+0000": (r'{"name": "a\u0000"}', "/name", "U+0000"),
    "a lone surrogate": (r'{"name": "a\ud800"}', "/name", "surrogate"),
    "a lone surrogate in a key": (r'{"a\ud800": 1}', "", "surrogate"),
    "beyond 2^63": (SPEC.replace("[4]", f"[{2**63}]"), "/spec/seeds/0", "2^63 - 1"),
    "beyond Python's digits": (
        SPEC.replace("[4]", f"[{'9' * 5000}]"),
        "",
        "the integer is too large",
    ),
    "not UTF-8": (b'{"name": "\xff"}', "", "UTF-8"),
    "a key twice": (b'{"name": "a", "name": "b"}', "", "once"),
    "an array": (b"[]", "", "object"),
    "unknown field beside the spec": (beside('"colour": 1'), "/colour", "allowed"),
    "an empty name": (beside('"name": ""'), "/name", "at least 1"),
    "priority beyond its range": (beside('"priority": 201'), "/priority", "200"),
}


def stored(settings: Settings) -> int:
    with Database(settings.url).snapshot() as session:
        rows = session.scalar(select(func.count()).select_from(Experiment)) or 0
        return rows + (session.scalar(select(func.count()).select_from(Event)) or 0)


def check(answer: Any, pointer: str, detail: str) -> None:
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["reason"] == "invalid_request"
    assert problem["request_id"] == answer.headers["x-request-id"]
    found = {e["pointer"]: e["detail"] for e in problem["errors"]}
    assert pointer in found, found
    assert any(part in found[pointer] for part in detail.split("|")), found[pointer]


@pytest.mark.parametrize("action", ["", ":validate"])
@pytest.mark.parametrize("name", BAD_SPECS)
def test_bad_spec(api: TestClient, settings: Settings, name: str, action: str) -> None:
    spec, pointer, detail = BAD_SPECS[name]
    check(api.post(f"/v1/experiments{action}", json={"spec": spec}), pointer, detail)
    assert stored(settings) == 0


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_body(api: TestClient, settings: Settings, name: str) -> None:
    body, pointer, detail = BAD_BODIES[name]
    headers = {"Content-Type": "application/json"}
    check(api.post("/v1/experiments", content=body, headers=headers), pointer, detail)
    assert stored(settings) == 0


def test_a_body_with_a_byte_order_mark_is_read(api: TestClient) -> None:
    body = json.dumps({"spec": ppca_spec()}).encode("utf-8-sig")
    answer = api.post("/v1/experiments", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 202
    assert answer.json()["family"] == "ppca"


def test_a_body_over_the_limit(api: TestClient, settings: Settings) -> None:
    body = json.dumps({"note": "x" * 300_000})
    answer = api.post("/v1/experiments", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "262144 bytes" in answer.json()["detail"]
    assert stored(settings) == 0


@pytest.mark.parametrize("experiment_id", ["0" * 32, "x", "a b", "%00", "é", "1" * 99])
@pytest.mark.parametrize("action", ["", "/curves", "/metrics", "/curves/score", ":cancel"])
def test_unknown_id(api: TestClient, experiment_id: str, action: str) -> None:
    method = "POST" if action == ":cancel" else "GET"
    answer = api.request(method, f"/v1/experiments/{experiment_id}{action}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == "you have no experiment of this id"


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=x", "limit"),
        ("cursor=%ff", "cursor"),
        ("cursor=!!", "cursor"),
        ("cursor=AA", "cursor"),
        ("status=lost", "status/0"),
        ("limit=9223372036854775808", "limit"),
    ],
)
def test_bad_query(api: TestClient, query: str, pointer: str) -> None:
    answer = api.get(f"/v1/experiments?{query}")
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == f"/query/{pointer}"


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer x", "Bearer mpt_", "Bearer mpt_a_b", "Basic eA", "Bearer mpt_é_x"],
)
def test_wrong_or_missing_key(api: TestClient, header: str | None) -> None:
    api.headers.pop("Authorization")
    headers = {} if header is None else {"Authorization": header.encode()}
    answer = api.get("/v1/experiments", headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 401
    assert answer.json()["reason"] == "unauthorized"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_the_right_id_with_another_secret(api: TestClient, settings: Settings) -> None:
    key = settings.key_file.read_text().strip()
    api.headers["Authorization"] = f"Bearer {key[:-1]}{'0' if key[-1] != '0' else '1'}"
    assert api.get("/v1/experiments").status_code == 401
