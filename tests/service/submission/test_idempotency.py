"""A request under an Idempotency-Key is carried out once, for every kind of submission."""

import json
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, text, update

from service.db.engine import Database
from service.experiments.models import Experiment
from service.settings import Settings
from service.submission import idempotency, submit
from service.submission.idempotency import IdempotentRequest
from service.submission.models import KeptRequest
from service.sweeps.models import SweepPoint
from service.vocabulary import Status
from tests.service.sweeps.test_sweeps import claim_next, finish
from tests.support import stored
from tests.support.callers import bearer, database_of, member
from tests.support.kept_bytes import bytes_agree
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import wait_until

ONE = {"spec": ppca_spec()}
BODIES: dict[str, Any] = {
    "/v1/experiments": ONE,
    "/v1/experiments:batch": {"experiments": [ONE, ONE]},
    "/v1/sweeps": {"spec": ppca_spec(), "grid": {"seeds": [[1], [2]]}},
    "/v1/sweeps/{sweep}/points": {"list": [{"seeds": [3]}]},
    "/v1/experiments/{ended}:retry": None,
}
ALL = pytest.mark.parametrize("path", BODIES)


def send(
    api: TestClient, path: str, body: Any = None, key: str | None = "once", **headers: str
) -> Any:
    own = {} if key is None else {"Idempotency-Key": key}
    return api.post(path, json=body, headers={**own, **headers})


def filled(api: TestClient, path: str) -> str:
    """A path with the ids of a sweep and of an experiment that has failed."""
    ended = send(api, "/v1/experiments", ONE, None).json()["id"]
    sweep = send(api, "/v1/sweeps", BODIES["/v1/sweeps"], None).json()["id"]
    stored.change(database_of(api), ended, status=Status.FAILED)
    return path.format(sweep=sweep, ended=ended)


def counts(api: TestClient) -> tuple[int, ...]:
    with database_of(api).snapshot() as session:
        tables = (Experiment, SweepPoint)
        return tuple(session.scalar(select(func.count()).select_from(one)) or 0 for one in tables)


def ids(answer: Any) -> Any:
    assert answer.is_success, answer.text
    found = answer.json()
    return found.get("id") or found.get("items") or found


@ALL
def test_a_repeated_request_gets_the_first_answer(admin: TestClient, path: str) -> None:
    body, path = BODIES[path], filled(admin, path)
    first = send(admin, path, body)
    after_first = counts(admin)
    again = send(admin, path, body)
    assert (again.status_code, ids(again)) == (first.status_code, ids(first))
    assert again.headers.get("Location") == first.headers.get("Location")
    assert counts(admin) == after_first
    assert ids(send(admin, path, body, "another")) != ids(first)


@ALL
def test_a_key_is_for_one_request(admin: TestClient, path: str) -> None:
    """Another body is another request, also where it means the same; so is another path."""
    body, path = BODIES[path], filled(admin, path)
    first = send(admin, path, body)
    others = [admin.post(path, content=json.dumps(body, indent=1), headers=first.request.headers)]
    others += [send(admin, other, BODIES[other]) for other in BODIES if "{" not in other]
    refused = [
        one.json()["reason"]
        for one in others
        if one.request.url != first.request.url or one.request.content != first.request.content
    ]
    assert refused == ["idempotency_key_reused"] * len(refused)
    assert len(refused) >= 2


def test_an_idempotency_key_is_only_for_its_user(admin: TestClient) -> None:
    """An admin who retries another user's experiment uses the admin's own keys."""
    ann = bearer(member(admin)["key"])
    mine = send(admin, "/v1/experiments", ONE)
    other = {"spec": ppca_spec(), "name": "another"}
    hers = send(admin, "/v1/experiments", other, **ann).json()
    assert hers["owner"] == "ann"
    assert ids(send(admin, "/v1/experiments", ONE)) == ids(mine)
    stored.change(database_of(admin), hers["id"], status=Status.FAILED)
    path = f"/v1/experiments/{hers['id']}:retry"
    retried = send(admin, path, key="retry").json()
    assert retried["owner"] == "ann"
    assert send(admin, path, key="retry").json()["id"] == retried["id"]
    assert send(admin, path, key="retry", **ann).json()["id"] != retried["id"]


def test_a_request_of_an_earlier_version_is_matched_by_its_path(admin: TestClient) -> None:
    """A client that got no answer while the lab was upgraded sends it again."""
    first = send(admin, "/v1/sweeps", BODIES["/v1/sweeps"])
    with database_of(admin).transaction() as session:
        session.execute(update(KeptRequest).values(sha256="POST /v1/sweeps"))
    assert ids(send(admin, "/v1/sweeps", BODIES["/v1/sweeps"])) == ids(first)
    other = send(admin, "/v1/experiments", ONE)
    assert other.json()["reason"] == "idempotency_key_reused"


@ALL
def test_a_key_is_free_once_all_that_it_made_is_deleted(admin: TestClient, path: str) -> None:
    body, path = BODIES[path], filled(admin, path)
    first = send(admin, path, body)
    if "sweeps" in path:
        sweep = path.removesuffix("/points") if path.endswith("/points") else ""
        assert admin.delete(sweep or f"/v1/sweeps/{ids(first)}").status_code == 204
        assert send(admin, path, body).status_code == (404 if sweep else 202)
        return
    made = [one["id"] for one in first.json().get("items", [first.json()])]
    for number, one in enumerate(made):
        assert admin.delete(f"/v1/experiments/{one}").status_code == 204
        again = send(admin, path, body)
        assert (ids(again) == ids(first)) == (number < len(made) - 1)
    assert ids(send(admin, path, body)) == ids(again)
    assert ids(again) != ids(first)


def test_an_earlier_result_answers_again_under_its_key(admin: TestClient) -> None:
    """A later experiment has computed the same, and would answer without the key."""

    def compute() -> str:
        made: str = send(admin, "/v1/experiments", {**ONE, "cache": False}, None).json()["id"]
        finish(database_of(admin), claim_next(database_of(admin)))
        return made

    first = compute()
    answer = send(admin, "/v1/experiments", ONE)
    assert (answer.status_code, answer.json()["cached_from"]) == (200, first)
    second = compute()
    again = send(admin, "/v1/experiments", ONE)
    assert (again.status_code, again.json()) == (200, answer.json())
    assert send(admin, "/v1/experiments", ONE, None).json()["cached_from"] == second
    other = send(admin, "/v1/experiments", {"spec": ppca_spec(seeds=[5])})
    assert other.json()["reason"] == "idempotency_key_reused"


def test_answers_from_the_cache_fill_no_store_beyond_its_limit(admin: TestClient) -> None:
    """Without room the key of a request that stores nothing stays free, and the answer is given."""
    first = send(admin, "/v1/experiments", {**ONE, "cache": False}, None).json()
    finish(database_of(admin), claim_next(database_of(admin)))
    assert admin.patch(f"/v1/users/{first['owner']}", json={"max_bytes": 1}).is_success
    for key in ("one", "two", "two"):
        answer = send(admin, "/v1/experiments:batch", {"experiments": [ONE, ONE]}, key)
        assert [one["cached_from"] for one in answer.json()["items"]] == [first["id"]] * 2
    with database_of(admin).snapshot() as session:
        assert session.scalars(select(KeptRequest)).all() == []
        assert bytes_agree(session)


@ALL
def test_two_equal_requests_at_once_are_stored_once(
    processes: list[TestClient], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both requests check the key before either of them writes it."""
    body, path = BODIES[path], filled(processes[0], path)
    before = counts(processes[0])
    both = threading.Barrier(2, timeout=60)
    prepare = vars(submit)["prepare"]

    def prepared(*arguments: Any, **options: Any) -> Any:
        both.wait()
        return prepare(*arguments, **options)

    monkeypatch.setattr(submit, "prepare", prepared)
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda api=api: answers.append(send(api, path, body)))
        for api in processes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    first, second = answers
    assert ids(first) == ids(second)
    monkeypatch.undo()
    after = counts(processes[0])
    send(processes[0], path, body, "alone")
    assert tuple(2 * b - a for a, b in zip(before, after, strict=True)) == counts(processes[0])


def test_a_request_that_made_nothing_leaves_its_key_free(admin: TestClient) -> None:
    """No experiment of the sweep had failed."""
    made = send(admin, "/v1/sweeps", BODIES["/v1/sweeps"], None).json()
    retry = made["urls"]["retry"]
    assert [send(admin, retry).json() for _ in range(2)] == [{"count": 0, "more": False}] * 2
    with database_of(admin).snapshot() as session:
        assert session.scalars(select(KeptRequest)).all() == []
        assert bytes_agree(session)
    admin.post(made["urls"]["cancel"])
    assert [send(admin, retry).json() for _ in range(2)] == [{"count": 2, "more": False}] * 2


@pytest.mark.parametrize("is_known", [False, True])
def test_a_second_request_waits_for_the_first(place: Settings, is_known: bool) -> None:
    """Check also a known key that is free because everything it created was deleted."""
    request = IdempotentRequest("once", "POST /v1/experiments", b"{}")
    found: list[Sequence[Any]] = []
    with closing(Database(place.url, connections=3)) as database:

        def claim() -> None:
            with database.transaction() as session:
                found.append(idempotency.claim(session, 1, request).made)

        if is_known:
            with database.transaction() as session:
                kept = idempotency.claim(session, 1, request)
                idempotency.keep(session, kept, request, ["of before"])
        with database.transaction() as session:
            kept = idempotency.claim(session, 1, request)
            second = threading.Thread(target=claim)
            second.start()
            second.join(0.5)
            assert second.is_alive()
            idempotency.keep(session, kept, request, ["of the first"])
        second.join(60)
    assert found == [["of the first"]]


def test_a_second_request_waits_for_a_row_that_is_deleted(lab: Settings) -> None:
    """The first one makes nothing under a known key, so that the key is free again."""
    request = IdempotentRequest("once", "POST /v1/experiments", b"{}")
    found: list[Sequence[Any]] = []
    with closing(Database(lab.url, connections=3)) as database:

        def claim() -> None:
            with database.transaction() as session:
                kept = idempotency.claim(session, 1, request)
                found.append(kept.made)
                idempotency.keep(session, kept, request, ["of the second"])

        with database.transaction() as session:
            kept = idempotency.claim(session, 1, request)
            idempotency.keep(session, kept, request, ["of before"])
        with database.transaction() as session:
            kept = idempotency.claim(session, 1, request)
            idempotency.keep(session, kept, request, [])
            second = threading.Thread(target=claim)
            second.start()
            wait_until(lambda: is_waiting(database))
        second.join(60)
        with database.snapshot() as session:
            assert session.scalars(select(KeptRequest)).one().made == ["of the second"]
            assert bytes_agree(session)
    assert found == [[]]


def is_waiting(database: Database) -> bool:
    """Return whether a statement waits for a lock."""
    with database.snapshot() as session:
        return bool(session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))
