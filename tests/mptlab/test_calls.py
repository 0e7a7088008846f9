"""Requests of each method of the client, and the results it returns."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mptlab import Client, Refused, Sweep
from tests.support.answers import Answers

SPEC = {"model": {"family": "ppca"}}
LATER = "20"
"""Seconds that no test here takes."""


@pytest.fixture
def client(answers: Answers) -> Iterator[Client]:
    with answers.client() as client:
        yield client


LISTS: list[tuple[Callable[[Client], Any], str, dict[str, str]]] = [
    (lambda c: c.users(), "/v1/users", {}),
    (lambda c: c.keys("ann"), "/v1/users/ann/keys", {}),
    (lambda c: c.usage(), "/v1/usage", {}),
    (lambda c: c.presets(), "/v1/presets", {}),
    (lambda c: [*c.datasets(limit=1)], "/v1/datasets", {"limit": "1"}),
    (lambda c: [*c.sweeps(whose="lab")], "/v1/sweeps", {"whose": "lab"}),
    (lambda c: [*c.audit(actor="ann")], "/v1/audit", {"actor": "ann"}),
]


@pytest.mark.parametrize(("call", "path", "query"), LISTS)
def test_calls_that_list(
    client: Client, answers: Answers, call: Callable[[Client], Any], path: str,
    query: dict[str, str],
) -> None:  # fmt: skip
    answers.says({"items": [{"name": "one"}], "next_cursor": None})
    assert call(client) == [{"name": "one"}]
    assert answers.sent == ("GET", path, query)


DOCUMENTS: list[tuple[Callable[[Client], Any], str, dict[str, str]]] = [
    (lambda c: c.me(), "/v1/me", {}),
    (lambda c: c.queue(), "/v1/queue", {}),
    (lambda c: c.worker_history(3), "/v1/workers/history", {"hours": "3"}),
]


@pytest.mark.parametrize(("call", "path", "query"), DOCUMENTS)
def test_calls_that_read(
    client: Client, answers: Answers, call: Callable[[Client], Any], path: str,
    query: dict[str, str],
) -> None:  # fmt: skip
    answers.says({"id": "a"})
    assert call(client) == {"id": "a"}
    assert answers.sent == ("GET", path, query)


def test_many_ids_are_requested_in_groups_of_fifty(client: Client, answers: Answers) -> None:
    ids = [f"{i:02}" for i in range(51)]
    answers.says(*({"items": [{"id": one} for one in some]} for some in (ids[:50], ids[50:])))
    assert [one["id"] for one in client.get_many([*ids, "07"])] == [*ids, "07"]
    assert [json.loads(request.content)["ids"] for request in answers.seen] == [ids[:50], ids[50:]]
    assert {request.url.path for request in answers.seen} == {"/v1/experiments:batchGet"}


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


def test_a_bundle_is_written(client: Client, answers: Answers, tmp_path: Path) -> None:
    assert client.bundle("a", tmp_path / "a.zip").read_bytes() == b"{}"
    assert answers.sent == ("GET", "/v1/experiments/a/bundle", {})


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (lambda c: c.get("../me?x=1"), "experiments/..%2Fme%3Fx%3D1"),
        (lambda c: c.curves("a", "b/c"), "experiments/a/curves/b%2Fc?max_points=100000"),
        (lambda c: c.artifact("a", "b/c"), "experiments/a/artifacts/b%2Fc"),
        (lambda c: c.dataset("a/b"), "datasets/a%2Fb"),
        (lambda c: c.preset("a/b"), "presets/a%2Fb"),
        (lambda c: c.verdict("a/b", ["c"]), "presets/a%2Fb/verdict?experiment=c"),
        (lambda c: c.get_sweep("a/b"), "sweeps/a%2Fb"),
    ],
)
def test_ids_and_names_are_quoted_in_paths(
    client: Client, answers: Answers, call: Callable[[Client], Any], path: str
) -> None:
    answers.says({"id": "a", "series": []})
    call(client)
    assert answers.seen[0].url.raw_path == f"/v1/{path}".encode()


BODIES: list[tuple[Callable[[Client], Any], str, str, Any]] = [
    (lambda c: c.add_user("ann"), "POST", "/v1/users", {"name": "ann", "role": "member"}),
    (lambda c: c.add_user("b", "viewer"), "POST", "/v1/users", {"name": "b", "role": "viewer"}),
    (lambda c: c.change_user("ann", active=False), "PATCH", "/v1/users/ann", {"active": False}),
    (lambda c: c.add_key("ann", name="n"), "POST", "/v1/users/ann/keys", {"name": "n"}),
    (lambda c: c.drain("gpu3", lasts_s=60.0), "POST", "/v1/drains",
     {"host": "gpu3", "hand_back_after_s": None, "lasts_s": 60.0}),
    (lambda c: c.change("a", note="n"), "PATCH", "/v1/experiments/a", {"note": "n"}),
]  # fmt: skip


@pytest.mark.parametrize(("call", "method", "path", "body"), BODIES)
def test_requests_sent_by_calls(
    client: Client, answers: Answers, call: Callable[[Client], Any], method: str, path: str,
    body: Any,
) -> None:  # fmt: skip
    answers.says({"id": "a"})
    assert call(client) == {"id": "a"}
    assert answers.sent == (method, path, {})
    assert answers.body == body


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (lambda c: c.delete("a"), "/v1/experiments/a"),
        (lambda c: c.revoke_key("ann", "k"), "/v1/users/ann/keys/k"),
        (lambda c: c.undrain("gpu3"), "/v1/drains/gpu3"),
    ],
)
def test_a_deletion_returns_nothing(
    client: Client, answers: Answers, call: Callable[[Client], Any], path: str
) -> None:
    answers.given = [httpx.Response(204)]
    assert call(client) is None
    assert answers.sent == ("DELETE", path, {})


def test_a_batch_sends_all_fields_and_returns_ids_in_order(
    client: Client, answers: Answers
) -> None:
    answers.says({"items": [{"id": "b"}, {"id": "a"}]})
    both: list[dict[str, Any]] = [{"spec": SPEC, "name": "one"}, {"spec": SPEC}]
    assert client.batch(iter(both), idempotency_key="once") == ["b", "a"]
    assert answers.sent == ("POST", "/v1/experiments:batch", {})
    assert answers.body == {"experiments": both}
    assert answers.seen[0].headers["Idempotency-Key"] == "once"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"grid": {"seeds": [[1], [2]]}}, {"grid": {"seeds": [[1], [2]]}}),
        ({"list": [{"data.n": 5}], "name": "s"}, {"list": [{"data.n": 5}], "name": "s"}),
    ],
)
def test_a_sweep_sends_its_points(
    client: Client, answers: Answers, how: dict[str, Any], said: Any
) -> None:
    answers.says({"id": "s"})
    assert client.sweep(SPEC, idempotency_key="once", **how).id == "s"
    assert answers.sent == ("POST", "/v1/sweeps", {})
    assert answers.body == {"spec": SPEC, **said}
    assert answers.seen[0].headers["Idempotency-Key"] == "once"


def test_a_sweep_of_an_earlier_version(client: Client, answers: Answers) -> None:
    answers.says({"id": "s"})
    client.get_sweep("a").get()
    client.sweep(SPEC).get()
    paths = ["/v1/sweeps/a", "/v1/sweeps/s", "/v1/sweeps", "/v1/sweeps/s"]
    assert [request.url.path for request in answers.seen] == paths


def test_a_page_that_signs_in(client: Client, answers: Answers) -> None:
    answers.says({"path": "/sign-in/x"})
    assert client.sign_in_url() == "http://lab:1/sign-in/x"
    assert answers.sent == ("POST", "/v1/sign-in-codes", {})


def test_a_log_is_read_to_its_end(client: Client, answers: Answers) -> None:
    """Each request asks for the unread lines of the requested level."""
    lines = [{"seq": i} for i in range(3)]
    pages = (lines[:2], 7, True), (lines[:0], 9, True), (lines[2:], 12, False)
    for level in (None, "warning"):
        answers.seen.clear()
        answers.says(*({"items": i, "last_seq": last, "more": more} for i, last, more in pages))
        assert [*client.logs("a", level)] == lines
        asked = [dict(request.url.params) for request in answers.seen]
        first = {} if level is None else {"level": level}
        assert asked == [first, {**first, "after": "7"}, {**first, "after": "9"}]
        assert {request.url.path for request in answers.seen} == {"/v1/experiments/a/logs"}


def test_a_request_for_many_curves_names_series_and_labels(
    client: Client, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is repeated if the service is busy, because it changes nothing."""
    monkeypatch.setenv("MPT_RETRY_S", LATER)
    busy, found = httpx.Response(503), httpx.Response(200, json={"items": [{"series": []}]})
    answers.given = [busy, found]
    assert client.curves_of(["a"], ["lml"], 7, seed=4) == [{"series": []}]
    assert [request.url.path for request in answers.seen] == ["/v1/curves:batchGet"] * 2
    assert answers.body == {
        "ids": ["a"], "series": ["lml"], "labels": {"seed": 4}, "max_points": 7,
    }  # fmt: skip
    client.curves_of(["a"])
    assert answers.body == {"ids": ["a"], "series": None, "labels": {}, "max_points": 100_000}


def test_files_are_written_to_the_given_folder(
    client: Client, answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files, or those with the given names. A missing name is an error, and no file is written
    partly."""
    sums = {"a.png": hashlib.sha256(b"x").hexdigest(), "b.png": "0" * 64}
    left = httpx.Response(200, json={"items": [{"name": n, "sha256": s} for n, s in sums.items()]})
    content = httpx.Response(200, content=b"x")
    folder = tmp_path / "new" / "er"
    answers.given = [left, content]
    assert client.download("e", folder, "a.png") == [folder / "a.png"]
    assert (folder / "a.png").read_bytes() == b"x"
    answers.given = [left, content]
    with pytest.raises(ValueError, match=r"^b\.png arrived damaged: download it again$"):
        client.download("e", str(folder))
    assert [file.name for file in folder.iterdir()] == ["a.png"]
    answers.given = [left]
    with pytest.raises(ValueError, match=r"^c does not exist: the experiment has a\.png, b\.png$"):
        client.download("e", folder, "a.png", "c")
    answers.says({"items": []})
    with pytest.raises(ValueError, match=r"^c does not exist: the experiment has no files$"):
        client.download("e", folder, "c")
    monkeypatch.chdir(tmp_path)
    answers.given = [httpx.Response(200, json={"items": left.json()["items"][:1]}), content]
    assert client.download("e") == [Path("a.png")]


def test_a_file_is_written_into_the_folder_whatever_it_is_called(
    client: Client, answers: Answers, tmp_path: Path
) -> None:
    name = "../up/weights.bin"
    left = {"items": [{"name": name, "sha256": hashlib.sha256(b"x").hexdigest()}]}
    answers.given = [httpx.Response(200, json=left), httpx.Response(200, content=b"x")]
    assert client.download("e", tmp_path / "here") == [tmp_path / "here" / "weights.bin"]
    assert [one.name for one in tmp_path.iterdir()] == ["here"]


def test_a_preset_is_run_whole(client: Client, answers: Answers) -> None:
    """Each spec under its name, in order, with the tags of the preset."""
    specs = [{**SPEC, "seeds": [i]} for i in range(2)]
    tags = [["preset:fig1", f"part:{part}"] for part in (1, 2)]
    preset = {"specs": specs, "tags": tags}
    answers.says(preset, {"items": [{"id": "a"}, {"id": "b"}]}, {"id": "a"}, {"id": "b"})
    made = client.run_preset("fig1", idempotency_key="once", tags=["t"])
    assert [one.id for one in made] == ["a", "b"]
    paths = [request.url.path for request in answers.seen]
    assert paths[:2] == ["/v1/presets/fig1", "/v1/experiments:batch"]
    sent = answers.seen[1]
    assert json.loads(sent.content)["experiments"] == [
        {"spec": spec, "name": f"fig1 {part}/2", "tags": ["t", *tags[part - 1]]}
        for part, spec in enumerate(specs, 1)
    ]
    assert sent.headers["Idempotency-Key"] == "once"
    short = {"specs": specs[:1], "tags": tags[:1]}
    answers.says(short, {"items": [{"id": "a"}]}, {"id": "a"})
    client.run_preset("fig1")
    (plain,) = json.loads(answers.seen[-2].content)["experiments"]
    assert (plain["name"], plain["tags"]) == ("fig1", ["preset:fig1", "part:1"])


def test_a_file_is_read_as_a_spec(client: Client, answers: Answers, tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(SPEC))
    client.validate(file)
    assert answers.body == {"spec": SPEC}
    assert answers.sent == ("POST", "/v1/experiments:validate", {})


def test_a_preset_with_several_specs_is_not_a_single_spec(client: Client, answers: Answers) -> None:
    answers.says({"specs": [SPEC]}, {"id": "a"})
    client.submit("fig1")
    assert answers.body == {"spec": SPEC}
    answers.says({"specs": [SPEC, SPEC]})
    told = r"^the preset fig1 has 2 specs: call client\.run_preset\('fig1'\) to queue them all$"
    with pytest.raises(ValueError, match=told):
        client.submit("fig1")


READS: list[Callable[[Client], Any]] = [
    *(call for call, *_ in DOCUMENTS),
    *(call for call, *_ in LISTS),
    lambda c: c.workers(),
    lambda c: c.artifacts("a"),
    lambda c: c.curves("a"),
    lambda c: [*c.logs("a")],
    lambda c: c.verdict("table1", ["a"]),
    lambda c: c.get_sweep("a"),
]


@pytest.mark.parametrize("call", READS)
def test_reading_requests_are_retried(
    client: Client,
    answers: Answers,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Client], Any],
) -> None:
    monkeypatch.setenv("MPT_RETRY_S", LATER)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    nothing: dict[str, Any] = {"items": [], "next_cursor": None, "series": []}
    found = {"id": "a", **nothing, "last_seq": 0, "more": False}
    answers.given = [httpx.Response(503), httpx.Response(200, json=found)]
    call(client)
    assert len(answers.seen) == 2
    answers.given = [httpx.Response(503), httpx.Response(200, json={"items": [{"id": "a"}]})]
    assert client.get_many(["a"]) == [{"id": "a"}]


@pytest.mark.parametrize(
    ("call", "path", "position"),
    [
        (lambda c, **how: c.events(**how), "/v1/events", {}),
        (lambda c, **how: Sweep(c, "a").events(**how), "/v1/sweeps/a/events", {}),
        (lambda c, **how: c.events_of("a", **how), "/v1/experiments/a/events", {"after": "3"}),
    ],
)
def test_kinds_of_events_that_are_followed(
    client: Client,
    answers: Answers,
    call: Callable[..., Iterator[Any]],
    path: str,
    position: dict[str, str],
) -> None:
    told = 'data: {"kind": "log"}\n\nevent: end\ndata: {"reason": "ended"}\n\n'
    kind = {"Content-Type": "text/event-stream"}
    for how, asked in (
        ({}, []),
        ({**position, "kind": ["log", "status"]},
         [*position.items(), ("kind", "log"), ("kind", "status")]),
    ):  # fmt: skip
        answers.given = [httpx.Response(200, headers=kind, text=told)]
        assert [*call(client, **how)] == [{"kind": "log"}]
        assert answers.seen[-1].url.path == path
        assert answers.seen[-1].url.params.multi_items() == asked


def test_a_comparison_is_a_frame(
    client: Client, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frame needs an optional package."""
    one = {"name": "n", "status": "succeeded", "metrics": [], "summary": []}
    first, second = ({**one, "id": id_, "spec": {"n": n}} for n, id_ in enumerate("ba"))
    documents = {**first, "items": [first, second]}, second
    answers.says(*documents)
    frame = client.compare(["b", "a"])
    assert ([*frame.index], [*frame["n"]]) == (["b", "a"], [0, 1])
    answers.says(*documents)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"'mptlab\[frames\]'$"):
        client.compare(["b", "a"])


@pytest.mark.parametrize(("for_s", "sent"), [(0.0, 1), (20.0, 2), (None, 1)])
def test_retries_stop_after_the_timeout(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, for_s: float | None, sent: int
) -> None:
    """An argument has priority over the environment variable."""
    monkeypatch.setenv("MPT_RETRY_S", "0" if sent == 2 or for_s is None else LATER)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    answers.given = [httpx.Response(503), httpx.Response(200, json={})]
    with answers.client(for_s) as client:
        if sent == 2:
            client.me()
        else:
            with pytest.raises(Refused, match=r"^HTTP 503$"):
                client.me()
    assert len(answers.seen) == sent


def test_the_last_poll_of_a_wait_sends_a_single_request(client: Client, answers: Answers) -> None:
    answers.given = [httpx.Response(503)]
    with pytest.raises(TimeoutError):
        client._look("/v1/experiments/a", time.monotonic())
    assert len(answers.seen) == 1


@pytest.mark.parametrize(
    ("url", "key", "told"),
    [
        ("lab:8765", "k", "lab:8765 is not a URL: start it with http:// or https://"),
        ("http://a", "ü", "the API key has an invalid character: copy it again"),
    ],
)
def test_invalid_urls_and_keys_give_a_readable_error(url: str, key: str, told: str) -> None:
    with pytest.raises(Refused) as refused:
        Client(url, key)
    assert str(refused.value) == told
