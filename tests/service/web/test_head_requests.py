"""HEAD answers where GET does, with the same headers, and ranges of files."""

import hashlib

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.events import poller
from service.experiments.models import Artifact
from service.settings import Settings
from service.ui.pages import EDITION
from tests.support.callers import database_of
from tests.support.ppca_spec import ppca_spec
from tests.support.streams import served

CONTENT = bytes(range(256)) * 8
CHANGING = {"date", "x-request-id", "ratelimit", "server-timing"}


@pytest.fixture
def file(api: TestClient, settings: Settings) -> str:
    """Address of a file of 2048 bytes."""
    experiment_id: str = api.post("/v1/experiments", json={"spec": ppca_spec()}).json()["id"]
    folder = settings.artifacts(experiment_id, 1)
    folder.mkdir(parents=True)
    (folder / "a.bin").write_bytes(CONTENT)
    facts = {"media_type": "application/octet-stream", "attempt": 1, "seq": 2}
    digest = hashlib.sha256(CONTENT).hexdigest()
    with database_of(api).transaction() as session:
        session.add(Artifact(experiment_id=experiment_id, file="a.bin", sha256=digest, **facts))
    return f"/v1/experiments/{experiment_id}/artifacts/a.bin"


PATHS = [
    "/", "/help", "/help/spec", "/docs", "/sign-in", f"/static/{EDITION}/main.js", "/healthz",
    "/readyz", "/openapi.json", "/v1/me", "/v1/experiments", "/v1/presets", "/v1/queue",
    "/v1/experiments/unknown", "/nowhere", "/v1/experiments?limit=x",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_head_has_the_status_and_headers_of_get(api: TestClient, path: str) -> None:
    check_alike(api, path)


def check_alike(api: TestClient, path: str, **headers: str) -> None:
    api.get("/v1/me")  # from now on the rate is that of the user
    head, got = (api.request(method, path, headers=headers) for method in ("HEAD", "GET"))
    assert head.content == b""
    assert head.status_code == got.status_code
    ours, theirs = (
        {name: value for name, value in answer.headers.items() if name not in CHANGING}
        for answer in (head, got)
    )
    if got.status_code < 300:
        assert ours["content-length"] == str(len(got.content))
    assert ours == theirs


def test_head_of_a_file(api: TestClient, file: str) -> None:
    check_alike(api, file)
    check_alike(api, file, Range="bytes=0-99")
    check_alike(api, file, Range="bytes=4096-")
    metrics = file.replace("artifacts/a.bin", "metrics")
    known = {"If-None-Match": api.head(metrics).headers["ETag"]}
    check_alike(api, metrics, **known)
    assert api.head(metrics, headers=known).status_code == 304


def test_head_where_get_is_not_allowed(api: TestClient) -> None:
    answer = api.head("/v1/experiments:batch")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


def test_head_counts_as_a_request(settings: Settings) -> None:
    key = settings.key_file.read_text().strip()
    app = create_app(settings.model_copy(update={"rate_per_user": 2}))
    with TestClient(app, headers={"Authorization": f"Bearer {key}"}) as api:
        api.get("/v1/me")
        assert [api.head("/v1/me").status_code for _ in range(3)] == [200, 200, 429]


def test_a_part_of_a_file(api: TestClient, file: str) -> None:
    answer = api.get(file, headers={"Range": "bytes=250-259"})
    assert (answer.status_code, answer.content) == (206, CONTENT[250:260])
    assert answer.headers["Content-Range"] == "bytes 250-259/2048"


@pytest.mark.parametrize(
    ("asked", "status", "reason"),
    [
        ("bytes=2048-", 416, "range_not_satisfiable"),
        ("bytes=0-9,5000-6000", 416, "range_not_satisfiable"),
        ("bytes=9-5", 400, "bad_range"),
        ("lines=1-2", 400, "bad_range"),
    ],
)
def test_a_wrong_range_is_a_problem(
    api: TestClient, file: str, asked: str, status: int, reason: str
) -> None:
    for path, size in ((file, 2048), (f"/static/{EDITION}/main.js", None)):
        answer = api.get(path, headers={"Range": asked.replace("2048", "99999")})
        assert answer.status_code == status
        assert answer.headers["Content-Type"] == "application/problem+json"
        document = answer.json()
        assert (document["status"], document["reason"]) == (status, reason)
        if status == 416 and size is not None:
            assert answer.headers["Content-Range"] == f"bytes */{size}"
            assert str(size) in document["detail"]


def test_head_of_an_endless_stream_ends(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "MAX_USER_STREAMS", 3)
    with served(settings) as client:
        for _ in range(9):  # more than a user may have open
            answer = client.head("/v1/events", headers={"Accept": "text/event-stream"})
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert client.head("/v1/me").status_code == 200
