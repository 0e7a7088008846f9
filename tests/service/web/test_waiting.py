"""`Prefer: wait`: the answer comes when the experiment has ended or changed, or in the end."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import httpx
import pytest

from service.accounts.models import ApiKey
from service.accounts.users import Caller
from service.app import create_app
from service.db.engine import Database
from service.events import poller
from service.experiments import query_routes as experiment_queries
from service.queue import lease
from service.settings import Settings
from service.vocabulary import Role, Status
from tests.support.attempts import claimed, submitted
from tests.support.callers import bearer
from tests.support.filled_lab import key_of
from tests.support.processes import wait_until
from tests.support.stored import change
from tests.support.streams import served, stream

CAP_S = 20.0
MOST = 2


@pytest.fixture
def client(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    monkeypatch.setattr(experiment_queries, "MAX_WAIT_S", CAP_S)
    monkeypatch.setattr(poller, "MAX_USER_STREAMS", MOST)
    with served(settings) as client:
        yield client


def asked(client: httpx.Client, experiment_id: str, prefer: str, **headers: str) -> httpx.Response:
    headers = {"Prefer": prefer, **headers}
    return client.get(f"/v1/experiments/{experiment_id}", headers=headers)


@pytest.fixture
def ask(client: httpx.Client) -> Iterator[Callable[..., Future[httpx.Response]]]:
    """Asks in a thread; the answer may be awaited while it waits."""
    with ThreadPoolExecutor(4) as pool:
        yield lambda *args, **headers: pool.submit(asked, client, *args, **headers)


def test_the_answer_comes_when_the_experiment_has_ended(ask: Any, database: Database) -> None:
    claim = claimed(database)
    answer = ask(claim.experiment_id, "wait=1000")
    change(database, claim.experiment_id, progress_done=1, progress_total=2)
    assert not answer.done()
    with database.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
    assert answer.result().json()["status"] == "succeeded"
    assert answer.result().headers["Preference-Applied"] == f"wait={CAP_S:g}"


def test_the_answer_comes_when_the_experiment_has_changed(
    client: httpx.Client, ask: Any, database: Database
) -> None:
    claim = claimed(database)
    tag = asked(client, claim.experiment_id, "").headers["ETag"]
    answer = ask(claim.experiment_id, "wait=15", **{"If-None-Match": tag})
    change(database, claim.experiment_id, progress_done=1, progress_total=2, progress_unit="masks")
    assert answer.result(timeout=CAP_S - 5).json()["progress"]["done"] == 1
    assert answer.result().headers["ETag"] != tag
    # An older state is answered at once.
    assert asked(client, claim.experiment_id, "wait=15", **{"If-None-Match": tag}).is_success


def test_all_waits_are_answered_when_the_experiment_ends(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read at the same time. Those beyond the maximum number do not wait."""
    monkeypatch.setattr(poller, "MAX_USER_STREAMS", 5)
    with (
        served(settings) as client,
        ThreadPoolExecutor(6) as pool,
        closing(Database(settings.url)) as database,
    ):
        claim = claimed(database)
        waiting = [pool.submit(asked, client, claim.experiment_id, "wait=20") for _ in range(6)]
        wait_until(lambda: any(one.done() for one in waiting))  # that without a place
        with database.transaction() as session:
            lease.finish(session, claim, Status.SUCCEEDED)
        answers = [one.result() for one in waiting]
        assert [one.status_code for one in answers] == [200] * 6
        statuses = sorted(one.json()["status"] for one in answers)
        assert statuses == ["running", *["succeeded"] * 5]


def test_nobody_waits_for_a_client_that_has_gone(client: httpx.Client, database: Database) -> None:
    """Its place among the user's waits and streams is free after the next change."""
    claim = claimed(database)
    for _ in range(MOST):
        with pytest.raises(httpx.ReadTimeout):
            client.get(
                f"/v1/experiments/{claim.experiment_id}",
                headers={"Prefer": f"wait={CAP_S:g}"},
                timeout=0.5,
            )
    change(database, claim.experiment_id, progress_done=1, progress_total=2, progress_unit="masks")

    def has_place() -> bool:
        return "Preference-Applied" in asked(client, claim.experiment_id, "wait=1").headers

    wait_until(has_place, CAP_S - 5)


def test_after_the_wait_the_current_state_is_answered(
    client: httpx.Client, database: Database
) -> None:
    experiment_id = submitted(database)
    answer = asked(client, experiment_id, "wait=1")
    assert answer.json()["status"] == "queued"
    assert answer.headers["Preference-Applied"] == "wait=1"
    tag = {"If-None-Match": answer.headers["ETag"]}
    assert asked(client, experiment_id, "wait=1", **tag).status_code == 304


@pytest.mark.parametrize(
    ("prefer", "applied"),
    [
        *((form, "wait=5") for form in ("wait=5", 'wait="5"', "respond-async, WAIT=5; strict")),
        *((form, None) for form in ("", "wait", "wait=x", "wait=-1", "respond-async", "wait=0")),
    ],
)
def test_forms_of_the_header(
    client: httpx.Client, database: Database, prefer: str, applied: str | None
) -> None:
    """An invalid wait is answered at once, and so is an experiment that has ended."""
    claim = claimed(database)
    with database.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
    answer = asked(client, claim.experiment_id, prefer)
    assert answer.status_code == 200
    assert answer.headers.get("Preference-Applied") == applied
    assert asked(client, "0" * 32, prefer).status_code == 404


def test_a_user_with_too_many_waits_is_answered_at_once(
    client: httpx.Client, database: Database
) -> None:
    experiment_id = submitted(database)
    with ExitStack() as stack:
        for _ in range(MOST):
            assert "Preference-Applied" in asked(client, experiment_id, "wait=1").headers
            stack.enter_context(stream(client, "/v1/events"))
        answer = asked(client, experiment_id, "wait=15")
    assert answer.json()["status"] == "queued"
    assert "Preference-Applied" not in answer.headers


def test_a_key_revoked_during_the_wait_gets_no_data(
    client: httpx.Client, database: Database
) -> None:
    experiment_id = submitted(database, visibility="lab")
    key = key_of(database, "ann", Role.MEMBER)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(asked, client, experiment_id, "wait=15", **bearer(key))
        with stream(client, "/v1/events", headers=bearer(key)) as events:
            with database.transaction() as session:
                session.get_one(ApiKey, key.split("_")[1]).revoked_at = 1.0
            assert [*events][-1].kind == "end"
        assert answer.result().status_code == 401


def test_a_server_that_stops_answers(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "MAX_USER_STREAMS", 1)
    experiment_id = submitted(database)
    app = create_app(settings)
    local = Caller(1, "local", Role.ADMIN, "", frozenset())
    with ThreadPoolExecutor(1) as pool:
        with served(settings, app) as client:
            answer = pool.submit(asked, client, experiment_id, "wait=60")
            wait_until(lambda: not app.state.poller.has_room(local))
        assert answer.result().json()["status"] == "queued"
