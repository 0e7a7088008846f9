"""Requests of each method of the client, and what it makes of the answers, without a network."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from mptlab import Client, Experiment, NoAnswer, NotSucceeded, Refused, Sweep
from tests.support.answers import Answers

SPEC = {"model": {"family": "ppca"}}
PATIENT_S = "20"
"""Seconds that no test here takes."""


@pytest.fixture
def client(answers: Answers) -> Iterator[Client]:
    with answers.client() as client:
        yield client


ITEMS = [{"id": "a"}]
DOCUMENT = {"id": "a", "status": "queued", "items": ITEMS, "next_cursor": None, "series": [],
            "columns": [], "next_offset": None, "last_seq": 0, "more": False, "path": "/x#y",
            "count": 2, "cancelled": 1, "ending": 0}  # fmt: skip
"""An answer that has what each method reads."""


class Call(NamedTuple):
    """A call, the request that it sends, and what it returns."""

    ask: Callable[[Client], Any]
    request: str
    body: Any = None
    returns: Any = DOCUMENT
    is_repeated: bool = True
    """True if the request may be sent twice, when the service is busy."""
    has_key: bool = False
    """True if it has an idempotency key."""


MANY: dict[str, Any] = {"ids": ["a"], "series": None, "labels": {}, "max_points": 100_000}
RUN = "/v1/experiments/a"
CALLS = [
    Call(lambda c: c.submit(SPEC), "POST /v1/experiments", {"spec": SPEC}, has_key=True),
    Call(lambda c: c.submit(SPEC, name="n", tags=["t"]), "POST /v1/experiments",
         {"spec": SPEC, "name": "n", "tags": ["t"]}, has_key=True),
    Call(lambda c: c.batch(iter([{"spec": SPEC, "name": "n"}])), "POST /v1/experiments:batch",
         {"experiments": [{"spec": SPEC, "name": "n"}]}, ["a"], has_key=True),
    Call(lambda c: c.sweep(SPEC, {"seeds": ([i] for i in (1, 2))}).id, "POST /v1/sweeps",
         {"spec": SPEC, "grid": {"seeds": [[1], [2]]}}, "a", has_key=True),
    Call(lambda c: c.sweep(SPEC, list=[{"data.n": 5}], name="s").id, "POST /v1/sweeps",
         {"spec": SPEC, "list": [{"data.n": 5}], "name": "s"}, "a", has_key=True),
    Call(lambda c: c.validate(SPEC), "POST /v1/experiments:validate", {"spec": SPEC}),
    Call(lambda c: c.get("a"), f"GET {RUN}"),
    Call(lambda c: c.get("../me?x=1"), "GET /v1/experiments/..%2Fme%3Fx%3D1"),
    Call(lambda c: c.get_many(["a"]), "POST /v1/experiments:batchGet", {"ids": ["a"]}, ITEMS),
    Call(lambda c: c.cancel("a"), f"POST {RUN}:cancel"),
    Call(lambda c: c.pause("a"), f"POST {RUN}:pause"),
    Call(lambda c: c.resume("a"), f"POST {RUN}:resume", is_repeated=False),
    Call(lambda c: c.retry("a"), f"POST {RUN}:retry", has_key=True),
    Call(lambda c: c.change("a", note="n"), f"PATCH {RUN}", {"note": "n"}, is_repeated=False),
    Call(lambda c: c.delete("a"), f"DELETE {RUN}", returns=None, is_repeated=False),
    Call(lambda c: c.undelete("a"), f"POST {RUN}:undelete"),
    Call(lambda c: c.curves("a"), f"GET {RUN}/curves?max_points=100000", returns=[]),
    Call(lambda c: c.curves("a", "b/c", 7, seed=4), f"GET {RUN}/curves/b%2Fc?max_points=7&seed=4",
         returns=[]),
    Call(lambda c: c.curves_of(["a"]), "POST /v1/curves:batchGet", MANY, ITEMS),
    Call(lambda c: c.curves_of(["a"], ["lml"], 7, seed=4), "POST /v1/curves:batchGet",
         {"ids": ["a"], "series": ["lml"], "labels": {"seed": 4}, "max_points": 7}, ITEMS),
    Call(lambda c: [*c.logs("a")], f"GET {RUN}/logs", returns=ITEMS),
    Call(lambda c: c.texts("a", group="g"),
         f"GET {RUN}/texts?order=row&group=g&offset=0&limit=10000", returns=ITEMS),
    Call(lambda c: c.artifacts("a"), f"GET {RUN}/artifacts", returns=ITEMS),
    Call(lambda c: json.loads(c.artifact("a", "b/c")), f"GET {RUN}/artifacts/b%2Fc"),
    Call(lambda c: [*c.experiments(status="failed")], "GET /v1/experiments?status=failed",
         returns=ITEMS),
    Call(lambda c: [*c.sweeps(whose="lab")], "GET /v1/sweeps?whose=lab", returns=ITEMS),
    Call(lambda c: c.get_sweep("a/b").id, "GET /v1/sweeps/a%2Fb", returns="a"),
    Call(lambda c: Sweep(c, "a").get(), "GET /v1/sweeps/a"),
    Call(lambda c: Sweep(c, "a").cancel(), "POST /v1/sweeps/a:cancel"),
    Call(lambda c: Sweep(c, "a").retry(), "POST /v1/sweeps/a:retry", returns=2),
    Call(lambda c: [*c.datasets(limit=1)], "GET /v1/datasets?limit=1", returns=ITEMS),
    Call(lambda c: c.dataset("a/b"), "GET /v1/datasets/a%2Fb"),
    Call(lambda c: c.presets(), "GET /v1/presets", returns=ITEMS),
    Call(lambda c: c.preset("a/b"), "GET /v1/presets/a%2Fb"),
    Call(lambda c: c.preset_runs(), "GET /v1/presets:runs", returns=ITEMS),
    Call(lambda c: c.verdict("a/b", ["d", "c"]),
         "GET /v1/presets/a%2Fb/verdict?experiment=d&experiment=c"),
    Call(lambda c: c.me(), "GET /v1/me"),
    Call(lambda c: c.sign_in_url(), "POST /v1/sign-in-codes", returns="http://lab:1/x#y",
         is_repeated=False),
    Call(lambda c: c.queue(), "GET /v1/queue"),
    Call(lambda c: c.workers(), "GET /v1/workers", returns=ITEMS),
    Call(lambda c: c.worker_history(3), "GET /v1/workers/history?hours=3"),
    Call(lambda c: c.drains(), "GET /v1/drains", returns=ITEMS),
    Call(lambda c: c.drain("gpu3", lasts_s=60.0, starts_in_s=30.0), "POST /v1/drains",
         {"host": "gpu3", "starts_in_s": 30.0, "hand_back_after_s": None, "lasts_s": 60.0},
         is_repeated=False),
    Call(lambda c: c.undrain("gpu3"), "DELETE /v1/drains/gpu3", returns=None, is_repeated=False),
    Call(lambda c: c.users(), "GET /v1/users", returns=ITEMS),
    Call(lambda c: c.add_user("ann"), "POST /v1/users", {"name": "ann", "role": "member"},
         is_repeated=False),
    Call(lambda c: c.change_user("ann", active=False), "PATCH /v1/users/ann", {"active": False},
         is_repeated=False),
    Call(lambda c: c.keys("ann"), "GET /v1/users/ann/keys", returns=ITEMS),
    Call(lambda c: c.add_key("ann", name="n"), "POST /v1/users/ann/keys", {"name": "n"},
         is_repeated=False),
    Call(lambda c: c.revoke_key("ann", "k"), "DELETE /v1/users/ann/keys/k", returns=None,
         is_repeated=False),
    Call(lambda c: [*c.audit(actor="ann")], "GET /v1/audit?actor=ann", returns=ITEMS),
    Call(lambda c: c.usage(), "GET /v1/usage", returns=ITEMS),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.request)
def test_the_request_of_a_call_and_whether_it_is_repeated(
    client: Client, answers: Answers, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    answers.says(DOCUMENT)
    assert call.ask(client) == call.returns
    (first,) = answers.seen
    assert f"{first.method} {first.url.raw_path.decode()}" == call.request
    assert (json.loads(first.content) if first.content else None) == call.body
    assert first.headers["Authorization"] == "Bearer mpt_a_b"
    monkeypatch.setenv("MPT_RETRY_S", PATIENT_S)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    answers.given = [httpx.Response(503), httpx.Response(200, json=DOCUMENT)]
    if call.is_repeated:
        assert call.ask(client) == call.returns
    else:
        with pytest.raises(Refused, match=r"^HTTP 503$"):
            call.ask(client)
    again = answers.seen[1:]
    assert len(again) == (2 if call.is_repeated else 1)
    # All requests of one call have one key, and each call has another.
    (key,) = {request.headers.get("Idempotency-Key") for request in again}
    assert (key is not None) == call.has_key
    assert key is None or key != first.headers["Idempotency-Key"]


def test_a_key_may_be_given(client: Client, answers: Answers) -> None:
    answers.says(DOCUMENT)
    client.submit(SPEC, idempotency_key="once")
    client.batch([], idempotency_key="once")
    client.sweep(SPEC, {"seeds": [[1]]}, idempotency_key="once")
    client.retry("a", idempotency_key="once")
    assert [request.headers["Idempotency-Key"] for request in answers.seen] == ["once"] * 4


def test_a_changed_experiment_has_its_new_document(client: Client, answers: Answers) -> None:
    answers.says(DOCUMENT)
    for change in ("refresh", "cancel", "pause", "resume", "undelete"):
        experiment = Experiment(client, {"id": "a", "status": "paused"})
        assert getattr(experiment, change)() is experiment
        assert experiment.status == "queued"
    experiment = Experiment(client, {"id": "a", "status": "failed"})
    assert experiment.change(name="new").status == "queued"
    answers.says({**DOCUMENT, "id": "b"})
    assert (experiment.retry().id, experiment.id) == ("b", "a")


def test_an_experiment_object_is_accepted_as_id(client: Client, answers: Answers) -> None:
    answers.says(DOCUMENT)
    client.cancel(client.experiments.get("a"))
    client.cancel({"id": "a"})
    assert [request.url.path for request in answers.seen[1:]] == [f"{RUN}:cancel"] * 2


def test_all_pages_are_read(client: Client, answers: Answers) -> None:
    answers.says({"items": [1, 2], "next_cursor": "x"}, {"items": [], "next_cursor": "y"},
                 {"items": [3], "next_cursor": None})  # fmt: skip
    assert [*client.experiments(status="failed")] == [1, 2, 3]  # type: ignore[comparison-overlap]
    queries = [dict(request.url.params) for request in answers.seen]
    first = {"status": "failed"}
    assert queries == [first, {**first, "cursor": "x"}, {**first, "cursor": "y"}]


def test_many_ids_are_requested_in_groups_of_fifty(client: Client, answers: Answers) -> None:
    ids = [f"{i:02}" for i in range(51)]
    answers.says(*({"items": [{"id": one} for one in some]} for some in (ids[:50], ids[50:])))
    assert [one["id"] for one in client.get_many([*ids, "07"])] == [*ids, "07"]
    assert [json.loads(request.content)["ids"] for request in answers.seen] == [ids[:50], ids[50:]]


def test_all_matching_experiments_are_cancelled(client: Client, answers: Answers) -> None:
    """A request after the other, until nothing more matches."""
    answers.says(
        {"cancelled": 500, "ending": 0, "more": True},
        {"cancelled": 2, "ending": 1, "more": False},
    )
    done = client.cancel_matching(whose="all", owner="ann", status=["queued", "running"])
    assert done == {"cancelled": 502, "ending": 1}
    sent = b"/v1/experiments:cancel?whose=all&owner=ann&status=queued&status=running"
    assert [one.url.raw_path for one in answers.seen] == [sent, sent]


def test_a_log_is_read_to_its_end(client: Client, answers: Answers) -> None:
    """Each request asks for the unread lines of the requested level."""
    lines = [{"seq": i} for i in range(3)]
    pages = (lines[:2], 7, True), (lines[:0], 9, True), (lines[2:], 12, False)
    answers.says(*({"items": i, "last_seq": last, "more": more} for i, last, more in pages))
    assert [*client.logs("a", "warning")] == lines
    queries = [dict(request.url.params) for request in answers.seen]
    level = {"level": "warning"}
    assert queries == [level, {**level, "after": "7"}, {**level, "after": "9"}]


def test_rows_have_ids_as_text_and_measures_as_numbers(client: Client, answers: Answers) -> None:
    table = (
        "row,id,seed,values,log_likelihood,p_value,unusual_columns\n"
        '0,007,4,3,-4.5,0.3,\n1,"a, b",4,2,-30.25,1e-09,b +4.2; c -3.1\n'
    )
    answers.given = [httpx.Response(200, content=table.encode())]
    first, second = client.rows("a")
    assert answers.sent[1] == f"{RUN}/artifacts/rows.csv"
    assert first == {
        "row": 0, "id": "007", "seed": 4, "values": 3, "log_likelihood": -4.5, "p_value": 0.3,
        "unusual_columns": [],
    }  # fmt: skip
    assert (second["id"], second["unusual_columns"]) == ("a, b", ["b +4.2", "c -3.1"])


@pytest.mark.parametrize(
    ("follow", "path"),
    [
        (lambda c, **how: c.events(**how), "/v1/events"),
        (lambda c, **how: Sweep(c, "a").events(**how), "/v1/sweeps/a/events"),
        (lambda c, **how: c.events_of("a", after="3", **how), f"{RUN}/events"),
    ],
)
def test_kinds_of_events_that_are_followed(
    client: Client, answers: Answers, follow: Callable[..., Iterator[Any]], path: str
) -> None:
    stream = 'data: {"kind": "log"}\n\nevent: end\ndata: {"reason": "ended"}\n\n'
    header = {"Content-Type": "text/event-stream"}
    answers.given = [httpx.Response(200, headers=header, text=stream)]
    assert [*follow(client, kind=["log", "status"])] == [{"kind": "log"}]
    (request,) = answers.seen
    assert request.url.path == path
    query = request.url.params
    assert query.get_list("kind") == ["log", "status"]
    assert query.get("after") == ("3" if path.startswith(RUN) else None)


# Specs and presets


def test_a_preset_is_run_whole(client: Client, answers: Answers) -> None:
    """Each spec under its name, in order, with the tags of the preset."""
    specs = [{**SPEC, "seeds": [i]} for i in range(2)]
    tags = [["preset:fig1", f"part:{part}"] for part in (1, 2)]
    answers.says({"specs": specs, "tags": tags}, {"items": [{"id": "a"}, {"id": "b"}]}, {"id": "a"},
                 {"id": "b"})  # fmt: skip
    runs = client.run_preset("fig1", idempotency_key="once", tags=["t"])
    assert [one.id for one in runs] == ["a", "b"]
    batch = answers.seen[1]
    assert json.loads(batch.content)["experiments"] == [
        {"spec": spec, "name": f"fig1 {part}/2", "tags": ["t", *tags[part - 1]]}
        for part, spec in enumerate(specs, 1)
    ]
    assert batch.headers["Idempotency-Key"] == "once"
    answers.says({"specs": specs[:1], "tags": tags[:1]}, {"items": [{"id": "a"}]}, {"id": "a"})
    client.run_preset("fig1")
    (alone,) = json.loads(answers.seen[-2].content)["experiments"]
    assert (alone["name"], alone["tags"]) == ("fig1", ["preset:fig1", "part:1"])


# Files


@pytest.mark.parametrize("form", [Path, str])
def test_an_upload(
    client: Client, answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    form: type[str | Path], capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Sent again from its beginning. How the file was read is printed."""
    monkeypatch.setenv("MPT_RETRY_S", PATIENT_S)
    file = tmp_path / "data.csv"
    file.write_bytes(b"1,2\n")
    dataset = {"id": "d", "name": "first.csv", "summary": "one row", "left_out": {"b": "no value"},
               "warnings": ["a warning"]}  # fmt: skip
    answers.given = [httpx.Response(503), httpx.Response(200, json=dataset)]
    assert client.upload(form(file), header=False, index="a", sep="\t") == dataset
    printed = capsys.readouterr().err
    for part in ("data.csv: one row", "uploaded before as first.csv", "b is left out: no value",
                 "a warning"):  # fmt: skip
        assert part in printed
    assert [request.content for request in answers.seen] == [b"1,2\n"] * 2
    last = answers.seen[-1]
    assert (last.method, last.url.path) == ("POST", "/v1/datasets")
    query = {"name": "data.csv", "header": "false", "index": "a", "sep": "tab"}
    assert dict(last.url.params) == query


def test_files_are_written_to_the_given_folder(
    client: Client, answers: Answers, tmp_path: Path
) -> None:
    """All files, or those with the given names. A missing name is an error, and no file is written
    partly."""
    digests = {"a.png": hashlib.sha256(b"x").hexdigest(), "b.png": "0" * 64}
    items = [{"name": name, "sha256": digest} for name, digest in digests.items()]
    files, content = httpx.Response(200, json={"items": items}), httpx.Response(200, content=b"x")
    folder = tmp_path / "new" / "er"
    answers.given = [files, content]
    assert client.download("e", folder, "a.png") == [folder / "a.png"]
    assert (folder / "a.png").read_bytes() == b"x"
    answers.given = [files, content]
    with pytest.raises(ValueError, match=r"^b\.png arrived damaged"):
        client.download("e", str(folder))
    assert [file.name for file in folder.iterdir()] == ["a.png"]
    answers.given = [files]
    with pytest.raises(ValueError, match=r"c does not exist.* a\.png, b\.png"):
        client.download("e", folder, "a.png", "c")


def test_a_file_is_written_into_the_folder_whatever_it_is_called(
    client: Client, answers: Answers, tmp_path: Path
) -> None:
    items = [{"name": "../up/weights.bin", "sha256": hashlib.sha256(b"x").hexdigest()}]
    answers.given = [httpx.Response(200, json={"items": items}), httpx.Response(200, content=b"x")]
    assert client.download("e", tmp_path / "here") == [tmp_path / "here" / "weights.bin"]
    assert [one.name for one in tmp_path.iterdir()] == ["here"]


# Waits


RUNNING = {"id": "a", "terminal": False, "status": "running"}
ENDED = {"id": "a", "terminal": True, "status": "failed", "failure": None}
WAITS: list[Callable[..., Any]] = [
    lambda c, **how: c.wait("a", **how),
    lambda c, **how: Sweep(c, "a").wait(progress=False, check=False, **how),
]
"""Waits for an experiment and for a sweep."""


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_ends_with_its_experiment_or_at_its_timeout(
    client: Client, answers: Answers, wait: Callable[..., Any]
) -> None:
    answers.says(RUNNING, RUNNING, ENDED)
    seen: list[Any] = []
    assert wait(client, on_change=seen.append, poll_s=0.01) == ENDED
    assert seen == [RUNNING, RUNNING, ENDED]
    answers.says(ENDED)
    assert wait(client, timeout_s=0, poll_s=1e9) == ENDED
    answers.says({**RUNNING, "queue": {"reason": "no CPU worker"}})
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"^a is running after 0\.2 s: no CPU worker$"):
        wait(client, timeout_s=0.2, poll_s=1e9)
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("timeout_s", [None, float(PATIENT_S)])
@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_survives_an_outage(
    client: Client, answers: Answers, wait: Callable[..., Any], timeout_s: float | None
) -> None:
    """Longer than other calls do, which here are not sent again at all."""
    running, busy, ended = httpx.Response(200, json=RUNNING), httpx.Response(503), ENDED
    answers.given = [running, busy, busy, httpx.Response(200, json=ended)]
    assert wait(client, timeout_s=timeout_s, poll_s=0.01) == ended


def test_a_wait_survives_an_outage_at_its_beginning_if_the_id_is_known(
    client: Client, answers: Answers
) -> None:
    outage = [httpx.Response(503), httpx.Response(200, json=ENDED)]
    answers.given = [*outage]
    assert Sweep(client, "a").wait(progress=False, check=False) == ENDED
    answers.given = [*outage]
    assert Experiment(client, RUNNING).wait(progress=False, check=False).status == "failed"
    answers.given = [*outage]
    with pytest.raises(Refused):
        client.wait("a")


def test_a_wait_ends_if_the_service_stays_unreachable(client: Client, answers: Answers) -> None:
    answers.given = [httpx.Response(200, json=RUNNING), httpx.Response(503)]
    with pytest.raises(TimeoutError, match=r"^http://lab:1 does not answer: HTTP 503$"):
        client.wait("a", timeout_s=0.3, poll_s=0.01)
    with Client("http://127.0.0.1:1", "key", on_outage=lambda _: None) as alone:
        with pytest.raises(TimeoutError, match=r"does not answer .*refused"):
            Sweep(alone, "a").wait(0.3, progress=False)


def test_a_deleted_experiment_ends_a_wait(client: Client, answers: Answers) -> None:
    answers.given = [httpx.Response(200, json=RUNNING),
                     httpx.Response(404, json={"detail": "gone"})]  # fmt: skip
    with pytest.raises(Refused, match=r"^gone$"):
        client.wait("a", math.inf, poll_s=0.01)


# Errors and the connection


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_proxy_is_not_used_for_this_machine(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would see the key of the store."""
    monkeypatch.setenv("http_proxy", "http://proxy.test:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    with Client(f"http://{host}:9", "key", for_s=0) as client, pytest.raises(NoAnswer) as raised:
        client.me()
    assert "efused" in str(raised.value)  # and not: unknown host


def test_a_refusal_raises_an_error_with_its_document(client: Client, answers: Answers) -> None:
    errors = [{"pointer": "/seeds", "detail": "a list"}]
    document = {"detail": "not so", "reason": "wrong_state", "errors": errors}
    answers.says(document, status=409)
    for call in (client.cancel, client.curves):
        with pytest.raises(Refused, match=r"^not so$") as refused:
            call("a")
        assert refused.value.document == document
        assert refused.value.errors == errors
        assert (refused.value.reason, refused.value.status) == ("wrong_state", 409)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx.Response(500, text="<html>"), "HTTP 500"),
        (httpx.Response(500, json=["a"]), "HTTP 500"),
        (httpx.Response(404, text="<html>"), "the server at lab is not MPT Lab: check the URL"),
        (httpx.Response(200, text="<html>"), "is not MPT Lab: check the URL"),
        (httpx.Response(400, json={"title": "bad"}), "bad"),
        (httpx.Response(400, json={"x": 1}), "{'x': 1}"),
        (httpx.Response(308, headers={"Location": "https://lab/v1/me"}), "https://lab/v1/me"),
    ],
)
def test_an_answer_of_another_program_gives_a_readable_error(
    client: Client, answers: Answers, answer: httpx.Response, message: str
) -> None:
    answers.given = [answer]
    with pytest.raises(Refused) as refused:
        client.get("a")
    assert message in str(refused.value)


def test_an_unsuccessful_experiment_is_named_with_its_failure() -> None:
    failure = {"kind": "invalid", "message": "why"}
    run = {"id": "ab", "name": "mine", "status": "failed", "failure": failure}
    assert str(NotSucceeded(run)) == "ab (mine) failed: invalid: why"
    assert NotSucceeded(run).document is run
    assert str(NotSucceeded({"id": "ab", "status": "cancelled"})) == "ab cancelled"
    sweep = {"id": "s", "points": 9, "counts": {"failed": 2, "cancelled": 1, "succeeded": 6}}
    assert str(NotSucceeded(sweep)) == "s: of 9 points, 2 failed and 1 cancelled"


def test_only_a_service_that_answers_is_ready(client: Client, answers: Answers) -> None:
    for status, is_ready in ((200, True), (503, False), (404, False)):
        answers.says({}, status=status)
        assert client.is_ready() is is_ready
    with Client("http://127.0.0.1:1", "key") as alone:
        assert alone.is_ready() is False
