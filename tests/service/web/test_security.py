"""Statements of docs/security.md that no other test checks."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.ppca_spec import ppca_spec

ADDRESSES = (
    "http://169.254.169.254/latest",
    "//10.0.0.1/x",
    "file:///etc/passwd",
    "../../etc/passwd",
)
MASKS = {"masks": {"schedule": "rates", "rates": [0.15]}}


def of_checkpoint(address: str) -> dict[str, Any]:
    model = {"family": "masked_lm", "checkpoint": address, "init": "pretrained"}
    return {**ppca_spec(), "model": model, "data": {"source": "glue"}, "evaluate": MASKS}


def of_text(address: str) -> dict[str, Any]:
    return {**of_checkpoint("bert-base-uncased"), "data": {"source": "text", "file": address}}


def of_upload(address: str) -> dict[str, Any]:
    return ppca_spec(model__init="random", data={"source": "upload", "dataset": address})


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        (of_checkpoint, "/spec/model/checkpoint"),
        (of_text, "/spec/data/file"),
        (of_upload, "/spec/data/dataset"),
    ],
)
def test_no_field_of_a_spec_accepts_a_url(
    api: TestClient, spec: Any, pointer: str, address: str
) -> None:
    answer = api.post("/v1/experiments", json={"spec": spec(address)})
    assert answer.status_code == 422
    assert pointer in {error["pointer"] for error in answer.json()["errors"]}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/experiments", {"GET", "HEAD", "POST"}),
        ("PUT", "/v1/experiments/a", {"GET", "HEAD", "PATCH", "DELETE"}),
        ("POST", "/help", {"GET", "HEAD"}),
        *(
            (method, "/v1/experiments/a:cancel", {"POST"})
            for method in ("GET", "HEAD", "PATCH", "DELETE")
        ),
        ("GET", "/v1/sweeps/a:retry", {"POST"}),
    ],
)
def test_a_wrong_method_is_refused_with_the_allowed_ones(
    api: TestClient, method: str, path: str, allowed: set[str]
) -> None:
    answer = api.request(method, path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed


def test_the_document_says_that_errors_are_problems(api: TestClient) -> None:
    for operations in api.get("/openapi.json").json()["paths"].values():
        for operation in operations.values():
            assert set(operation["responses"]["4XX"]["content"]) == {"application/problem+json"}
