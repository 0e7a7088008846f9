"""Requests of each client call and the results it returns, without a network."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mptlab import Client, NoAnswer, NotSucceeded, Refused, uploads
from mptlab.cli import _status_of
from mptlab.sweeps import Sweep
from tests.support.answers import Answers

SPEC = {"model": {"family": "ppca"}}
LATER = 20.0
"""Seconds that no test here takes."""


@pytest.fixture
def client(answers: Answers) -> Iterator[Client]:
    with answers.client() as client:
        yield client


PLAIN: list[tuple[Callable[[Client], Any], str, str, dict[str, str]]] = [
    (lambda c: c.get("a"), "GET", "/v1/experiments/a", {}),
    (lambda c: c.cancel("a"), "POST", "/v1/experiments/a:cancel", {}),
    (lambda c: c.pause("a"), "POST", "/v1/experiments/a:pause", {}),
    (lambda c: c.resume("a"), "POST", "/v1/experiments/a:resume", {}),
    (lambda c: c.undelete("a"), "POST", "/v1/experiments/a:undelete", {}),
    (lambda c: c.retry("a"), "POST", "/v1/experiments/a:retry", {}),
    (lambda c: c.preset("table1"), "GET", "/v1/presets/table1", {}),
    (lambda c: c.validate(SPEC), "POST", "/v1/experiments:validate", {}),
    (lambda c: c.submit(SPEC), "POST", "/v1/experiments", {}),
]


@pytest.mark.parametrize(("call", "method", "path", "query"), PLAIN)
def test_the_address_of_a_call(
    client: Client, answers: Answers, call: Callable[[Client], Any], method: str, path: str,
    query: dict[str, str],
) -> None:  # fmt: skip
    answers.says({"id": "a"})
    assert call(client) == {"id": "a"}
    assert answers.sent == (method, path, query)
    assert answers.seen[0].headers["Authorization"] == "Bearer mpt_a_b"


LISTS: list[tuple[Callable[[Client], Any], str, dict[str, str], str]] = [
    (lambda c: c.workers(), "/v1/workers", {}, "items"),
    (lambda c: c.artifacts("a"), "/v1/experiments/a/artifacts", {}, "items"),
    (lambda c: c.curves("a"), "/v1/experiments/a/curves", {"max_points": "100000"}, "series"),
    (
        lambda c: c.curves("a", "score", 7, seed=4),
        "/v1/experiments/a/curves/score",
        {"max_points": "7", "seed": "4"},
        "series",
    ),
]


@pytest.mark.parametrize(("call", "path", "query", "key"), LISTS)
def test_a_list_contains_the_items_of_the_answer(
    client: Client, answers: Answers, call: Callable[[Client], Any], path: str,
    query: dict[str, str], key: str,
) -> None:  # fmt: skip
    answers.says({key: [{"name": "one"}], "other": []})
    assert call(client) == [{"name": "one"}]
    assert answers.sent == ("GET", path, query)


@pytest.mark.parametrize(("call", "method", "path", "query"), PLAIN)
def test_a_refusal_raises_an_error_with_its_message(
    client: Client, answers: Answers, call: Callable[[Client], Any], method: str, path: str,
    query: dict[str, str],
) -> None:  # fmt: skip
    answers.says({"detail": "not so", "reason": "wrong_state"}, status=409)
    with pytest.raises(Refused, match=r"^not so$") as refused:
        call(client)
    assert refused.value.document == {"detail": "not so", "reason": "wrong_state"}
    assert refused.value.status == 409


IDEMPOTENT = {"get", "cancel", "pause", "retry", "preset", "validate", "submit", "undelete"}


@pytest.mark.parametrize("name", [*sorted(IDEMPOTENT), "resume"])
def test_only_idempotent_requests_are_sent_twice(
    client: Client, answers: Answers, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("MPT_RETRY_S", str(LATER))
    answers.given = [httpx.Response(503), httpx.Response(200, json={"id": "a"})]
    argument = SPEC if name in ("submit", "validate") else "a"
    if name in IDEMPOTENT:
        assert getattr(client, name)(argument) == {"id": "a"}
    else:
        with pytest.raises(Refused, match=r"^HTTP 503$"):
            getattr(client, name)(argument)
    assert len(answers.seen) == (2 if name in IDEMPOTENT else 1)
    keys = {request.headers.get("Idempotency-Key") for request in answers.seen}
    assert len(keys) == 1
    assert (keys == {None}) == (name not in ("submit", "retry"))


@pytest.mark.parametrize("name", ["cancel", "retry"])
def test_reading_requests_for_sweeps_may_be_sent_twice(
    answers: Answers, client: Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("MPT_RETRY_S", str(LATER))
    answers.given = [httpx.Response(503), httpx.Response(200, json={"id": "a", "count": 2})]
    getattr(Sweep(client, "a"), name)()
    assert [request.url.path for request in answers.seen] == [f"/v1/sweeps/a:{name}"] * 2


def test_a_submission_sends_all_given_fields(client: Client, answers: Answers) -> None:
    client.submit(SPEC, name="a", tags=["b"], idempotency_key="once")
    assert answers.body == {"spec": SPEC, "name": "a", "tags": ["b"]}
    assert answers.seen[0].headers["Idempotency-Key"] == "once"
    client.validate(SPEC)
    assert answers.body == {"spec": SPEC}


@pytest.mark.parametrize("call", [lambda c: c.submit(SPEC), lambda c: c.retry("a")])
def test_each_call_has_its_own_idempotency_key(
    client: Client, answers: Answers, call: Callable[[Client], Any]
) -> None:
    call(client)
    call(client)
    first, second = (request.headers["Idempotency-Key"] for request in answers.seen)
    assert first != second
    assert len(first) == 32


def test_a_verdict_names_its_experiments_in_order(client: Client, answers: Answers) -> None:
    client.verdict("table1", ["b", "a"])
    (request,) = answers.seen
    assert (request.method, request.url.path) == ("GET", "/v1/presets/table1/verdict")
    assert request.url.params.multi_items() == [("experiment", "b"), ("experiment", "a")]


def test_all_pages_are_read(client: Client, answers: Answers) -> None:
    answers.says({"items": [1, 2], "next_cursor": "x"}, {"items": [], "next_cursor": "y"},
                 {"items": [3], "next_cursor": None})  # fmt: skip
    assert [*client.experiments(status="failed")] == [1, 2, 3]  # type: ignore[comparison-overlap]
    asked = [dict(request.url.params) for request in answers.seen]
    first = {"status": "failed"}
    assert asked == [first, {**first, "cursor": "x"}, {**first, "cursor": "y"}]
    assert {(request.method, request.url.path) for request in answers.seen} == {
        ("GET", "/v1/experiments")
    }


@pytest.mark.parametrize("form", [Path, str])
def test_an_upload(
    client: Client,
    answers: Answers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: type[str | Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sent again from its beginning, and with patience for the answer."""
    monkeypatch.setenv("MPT_RETRY_S", str(LATER))
    file = tmp_path / "data.csv"
    file.write_bytes(b"1,2\n")
    made = {
        "id": "d",
        "name": "data.csv",
        "summary": "one row",
        "left_out": {"b": "no value"},
        "warnings": ["a warning"],
    }
    answers.given = [httpx.Response(503), httpx.Response(200, json=made)]
    assert client.upload(form(file), header=False, index="a") == made
    assert capsys.readouterr().err == "data.csv: one row\nb is left out: no value\na warning\n"
    uploads.print_reading("again.csv", made)
    shown = "again.csv: one row (uploaded before as data.csv)\n"
    assert capsys.readouterr().err.startswith(shown)
    assert [request.content for request in answers.seen] == [b"1,2\n"] * 2
    last = answers.seen[-1]
    assert (last.method, last.url.path) == ("POST", "/v1/datasets")
    assert dict(last.url.params) == {"name": "data.csv", "header": "false", "index": "a"}
    patience = last.extensions["timeout"]
    assert patience == {"connect": 30.0, "read": uploads.UPLOAD_S, "write": 30.0, "pool": 30.0}


def test_an_artifact_is_its_bytes(
    client: Client, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPT_RETRY_S", str(LATER))
    answers.given = [httpx.Response(503), httpx.Response(200, content=b"\x00\xff")]
    assert client.artifact("a", "w.png") == b"\x00\xff"
    assert answers.seen[-1].url.path == "/v1/experiments/a/artifacts/w.png"
    answers.says({"detail": "no such file"}, status=404)
    with pytest.raises(Refused, match=r"^no such file$"):
        client.artifact("a", "w.png")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(500, text="<html>"), "HTTP 500"),
        (httpx.Response(500, json=["a"]), "HTTP 500"),
        (httpx.Response(404, text="<html>"), "the server at {host} is not MPT Lab: check the URL"),
        (httpx.Response(400, json={"title": "bad"}), "bad"),
        (httpx.Response(400, json={"title": "bad", "detail": "why"}), "why"),
        (httpx.Response(400, json={"x": 1}), "{'x': 1}"),
    ],
)
def test_a_refusal_without_a_problem_document(
    client: Client, answers: Answers, answer: httpx.Response, said: str
) -> None:
    answers.given = [answer]
    with pytest.raises(Refused) as refused:
        client.get("a")
    assert str(refused.value) == said.replace("{host}", client._http.base_url.host)


@pytest.mark.parametrize(
    ("status", "ready"), [(200, True), (204, True), (503, False), (404, False)]
)
def test_a_service_that_answers_is_ready(
    client: Client, answers: Answers, status: int, ready: bool
) -> None:
    answers.says({}, status=status)
    assert client.is_ready() is ready
    assert answers.sent == ("GET", "/readyz", {})


def test_a_service_that_does_not_answer_is_not_ready() -> None:
    with Client("http://127.0.0.1:1", "key") as client:
        assert client.is_ready() is False


RUNNING = {"terminal": False, "status": "running"}
ENDED = {"terminal": True, "status": "failed"}


def test_a_wait_ends_when_the_experiment_ends(client: Client, answers: Answers) -> None:
    answers.says(RUNNING, RUNNING, ENDED)
    seen: list[Any] = []
    assert client.wait("a", on_change=seen.append, poll_s=0.01) == ENDED
    assert seen == [RUNNING, RUNNING, ENDED]
    assert [request.url.path for request in answers.seen] == ["/v1/experiments/a"] * 3


def test_ended_experiments_are_not_waited_for(client: Client, answers: Answers) -> None:
    answers.says(ENDED)
    assert client.wait("a", timeout_s=0, poll_s=1e9) == ENDED
    assert len(answers.seen) == 1


def test_a_wait_ends_at_its_timeout(client: Client, answers: Answers) -> None:
    answers.says(RUNNING)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"^a is running after 0\.2 s$"):
        client.wait("a", timeout_s=0.2, poll_s=1e9)
    assert time.monotonic() - began >= 0.2
    assert len(answers.seen) == 2  # at once, and at the end


def test_a_wait_polls_at_the_given_interval(
    client: Client, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    answers.says(*[RUNNING] * 3, ENDED)
    client.wait("a", poll_s=7.0)
    answers.says(*[RUNNING] * 3, ENDED)
    client.wait("a")
    assert pauses == [7.0] * 3 + [0.2] * 3


@pytest.mark.parametrize("timeout_s", [None, LATER])
def test_a_wait_survives_an_outage(
    client: Client, answers: Answers, timeout_s: float | None
) -> None:
    """Longer than other calls do, which here are not sent again at all."""
    answers.given = [httpx.Response(200, json=RUNNING), httpx.Response(503), httpx.Response(503),
                     httpx.Response(200, json=ENDED)]  # fmt: skip
    assert client.wait("a", timeout_s, poll_s=0.01) == ENDED


def test_a_wait_ends_if_the_service_stays_unreachable(client: Client, answers: Answers) -> None:
    answers.given = [httpx.Response(200, json=RUNNING), httpx.Response(503)]
    with pytest.raises(TimeoutError, match=r"^http://lab:1 does not answer: HTTP 503$"):
        client.wait("a", timeout_s=0.3, poll_s=0.01)

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    looked = client._look
    client._http = httpx.Client(transport=httpx.MockTransport(refuse), base_url="http://lab:1")
    with pytest.raises(TimeoutError, match=r"^http://lab:1 does not answer: refused$") as raised:
        looked("a", time.monotonic() + 0.3)
    assert isinstance(raised.value.__cause__, httpx.ConnectError)


def test_a_deleted_experiment_ends_a_wait(client: Client, answers: Answers) -> None:
    answers.given = [httpx.Response(200, json=RUNNING),
                     httpx.Response(404, json={"detail": "gone"})]  # fmt: skip
    with pytest.raises(Refused, match=r"^gone$"):
        client.wait("a", math.inf, poll_s=0.01)


def test_an_outage_is_reported_with_its_cause(
    client: Client, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPT_RETRY_S", str(LATER))
    told: list[str] = []
    monkeypatch.setattr(client, "_on_outage", told.append)
    answers.given = [httpx.Response(503), httpx.Response(200, json={})]
    client.get("a")
    assert told == ["http://lab:1 does not answer (HTTP 503): retrying"]


def test_a_client_is_closed_at_the_end_of_its_block() -> None:
    with Client("http://a", "k") as client:
        assert not client._http.is_closed
    assert client._http.is_closed


def test_an_answer_of_another_program_gives_a_readable_error(
    client: Client, answers: Answers
) -> None:
    """The answer looks like the login page of a proxy with status 200."""
    answers.given = [httpx.Response(200, text="<html>")]
    with pytest.raises(Refused, match=r"^the server at http://lab:1/v1/me is not MPT Lab"):
        client.me()


def test_ids_are_quoted_in_paths(client: Client, answers: Answers) -> None:
    client.get("../me?x=1")
    assert answers.seen[0].url.raw_path == b"/v1/experiments/..%2Fme%3Fx%3D1"


def test_an_experiment_object_is_accepted_as_id(client: Client, answers: Answers) -> None:
    answers.says({"id": "a", "status": "queued"})
    client.cancel(client.experiments.get("a"))
    client.cancel({"id": "a"})
    assert [request.url.path for request in answers.seen[1:]] == ["/v1/experiments/a:cancel"] * 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refused({"detail": "no"}, 404), 1),
        (Refused({"detail": "away"}, 503), 4),
        (NoAnswer("http://lab", "refused"), 4),
        (TimeoutError("late"), 4),
        (NotSucceeded({"id": "a", "status": "cancelled"}), 3),
        (PermissionError(13, "denied", "/x"), 1),
        (ValueError("no spec"), 1),
        (AssertionError("a defect"), None),
    ],
)
def test_exit_statuses(error: Exception, status: int | None) -> None:
    assert _status_of(error) == status


def test_rows_have_ids_as_text_and_measures_as_numbers(client: Client, answers: Answers) -> None:
    table = (
        "row,id,seed,values,log_likelihood,p_value,unusual_columns\n"
        '0,007,4,3,-4.5,0.3,\n1,"a, b",4,2,-30.25,1e-09,b +4.2; c -3.1\n'
    )
    answers.given = [httpx.Response(200, content=table.encode())]
    first, second = client.rows("a")
    assert answers.sent[1] == "/v1/experiments/a/artifacts/rows.csv"
    assert first == {
        "row": 0, "id": "007", "seed": 4, "values": 3, "log_likelihood": -4.5, "p_value": 0.3,
        "unusual_columns": "",
    }  # fmt: skip
    assert second["id"] == "a, b"
    pairs = (one.rsplit(" ", 1) for one in second["unusual_columns"].split("; "))
    assert {name: float(value) for name, value in pairs} == {"b": 4.2, "c": -3.1}
