"""Text, words and headers that break parsers: on every route of the OpenAPI document, the answer is
never an internal error. schemathesis cannot write most of them (`make fuzz`)."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.support.ppca_spec import ppca_spec

MAX_REFUSAL_BYTES = 256 * 1024
TEXTS = ("NaN", "-Infinity", "1e400", "9" * 5000, r'"a\u0000b"', r'"\ud800"', str(2**63), "5e-324",
         "[" * 100_000, '{"a":' * 100_000, "[" + "1," * 50_000 + "1]", '"' + "x" * 100_000 + '"',
         '1, "name": "a", "name": "b"')  # fmt: skip
"""JSON, or nearly, in place of a value."""
WORDS = ("-1", "1e9", str(2**64), "NaN", "٣", "%00", "%ff", "'--", "a" * 5000, "..%2f..", "\u202e",
         "2026-13-01T25:61:00Z", "finished_at < 1970-01-01", "tag != null", "(" * 3000,
         "not " * 500 + "name = a", "spec." + "a." * 200 + "b >= 1e400", "name = '" + "a*" * 900,
         "spec.model.latent_dim in (1, '2', null)", "metrics.lml{seed=4} desc")  # fmt: skip
"""Words for a path or a query."""
HEADERS = ("Authorization", "Idempotency-Key", "X-Request-ID", "Accept", "Prefer", "If-None-Match",
           "Range", "Content-Type", "Content-Encoding", "Cookie", "Host",
           "X-Forwarded-For", "Origin", "Accept-Encoding", "Last-Event-ID")  # fmt: skip
VALUES = (b"", b"\xff\xfe", b"x" * 8000, b"Bearer", b"Bearer mpt_\xe9_x_y", b"-1", b'"', b"[",
          b"bytes=99999999999999999999-1", b"wait=1e400", b"*/*;q=nan", b"::1, 2001:db8::1",
          b"a/b;q=1," * 1000, b'"a",' * 2000, b'a="' + b"\\101" * 2000 + b'"')  # fmt: skip


JSON = {"Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def api(settings: Settings) -> Iterator[TestClient]:
    """A client that may send requests at any rate."""
    unlimited = settings.model_copy(update={"rate_per_user": 10**9})
    headers = {"Authorization": f"Bearer {settings.key_file.read_text().strip()}"}
    app = create_app(unlimited)
    with TestClient(app, headers=headers, raise_server_exceptions=False) as client:
        yield client


def operations(api: TestClient) -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of each operation, those that only read first."""
    paths = api.get("/openapi.json").json()["paths"]
    every = [(m.upper(), path, about) for path, ms in paths.items() for m, about in ms.items()]
    return sorted(every, key=lambda one: one[0] != "GET")


def defects(api: TestClient, method: str, path: str, **how: Any) -> list[str]:
    """Send a request, and describe it if its answer is an internal error or a long refusal. FastAPI
    makes a 400 of an exception while it parses a body."""
    answer = api.request(method, path, **how)
    is_error = answer.status_code >= 500 or answer.status_code == 400
    is_long = answer.is_error and len(answer.content) > MAX_REFUSAL_BYTES
    if not is_error and not is_long:
        return []
    return [f"{answer.status_code}: {method} {path:.200} {how!s:.200}"]


def test_no_text_in_a_body_is_an_internal_error(api: TestClient) -> None:
    schemas = api.get("/openapi.json").json()["components"]["schemas"]
    found = []
    for method, path, about in operations(api):
        content = about.get("requestBody", {}).get("content", {})
        if "application/json" not in content:
            continue
        name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
        example = schemas[name]["examples"][0]
        for field in example:
            body = json.dumps({**example, field: "@@"})
            for text in TEXTS:
                written = body.replace('"@@"', text)
                found += defects(api, method, path, content=written, headers=JSON)
    assert not found, "\n".join(found)


def test_no_word_in_a_path_or_a_query_is_an_internal_error(api: TestClient) -> None:
    experiment_id = api.post("/v1/experiments", json={"spec": ppca_spec()}).json()["id"]
    found = []
    for method, template, about in operations(api):
        path = template.replace("{experiment_id}", experiment_id)
        names = [one["name"] for one in about.get("parameters", ()) if one["in"] == "query"]
        for word in (quote(word, safe="%") for word in WORDS):
            if "{" in template:
                found += defects(api, method, re.sub(r"{\w+}", word, template))
            for name in names:
                found += defects(api, method, f"{path}?{name}={word}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_header_is_an_internal_error(api: TestClient, method: str) -> None:
    body = {} if method == "GET" else {"json": {"spec": ppca_spec()}}
    found = []
    for name in HEADERS:
        for value in VALUES:
            headers = [(name.encode(), value)]
            found += defects(api, method, "/v1/experiments", headers=headers, **body)
    assert not found, "\n".join(found)


@pytest.mark.slow  # hundreds of requests to a real process
def test_schemathesis_finds_nothing() -> None:
    """A short form of `make fuzz`."""
    command = "-m tests.fuzz --role member --examples 1 --phases examples,fuzzing"
    done = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
