"""Searches and large answers: a bounded first try, and few places for those that it is not enough
for."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from types import ModuleType
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from sqlalchemy import Result, event, text
from sqlalchemy.orm import Session

from service.accounts.users import Caller
from service.app import MAX_BUNDLES, create_app
from service.db.engine import Database
from service.experiments import deletion
from service.experiments import query_routes as experiment_queries
from service.experiments import result_routes as experiment_results
from service.experiments import routes as experiments
from service.experiments.models import Event, Experiment
from service.limiter import FairLimiter
from service.presets import routes as presets
from service.records import results
from service.refusals import ApiError
from service.settings import Settings
from service.sweeps import routes as sweeps
from service.web import dependencies, long_reads
from tests.service.web.test_pools import affirmed, served
from tests.support.filled_lab import succeeded

SLOW: Any = text(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000000) "
    "SELECT max(i) FROM n"
)
LISTS = [
    f"/v1/experiments?{query}"
    for query in ("filter=name = a", "q=a", "metrics=lml", "order_by= metrics.lml desc")
]
ROUTES = [
    *(("GET", url, experiment_queries, "page_of") for url in LISTS),
    ("POST", "/v1/experiments:cancel?q=a", experiments, "_matching"),
    ("GET", "/v1/presets:runs", presets, "runs_of_presets"),
    ("GET", "/v1/sweeps", sweeps, "newest"),
]


def slowly(module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a function that reads take minutes, and searches a moment."""
    read: Callable[..., Any] = getattr(module, name)

    def slow(session: Session, *rest: Any, **named: Any) -> Any:
        session.execute(SLOW)
        return read(session, *rest, **named)

    monkeypatch.setattr(module, name, slow)
    monkeypatch.setattr(long_reads, "FIRST_TRY_S", 0.1)
    monkeypatch.setattr(long_reads, "SEARCH_S", 0.2)


def limits_of(statements: list[str]) -> list[str]:
    return [one.rpartition(" ")[2] for one in statements if "SET LOCAL statement_timeout" in one]


def check_usual_limit(database: Database) -> None:
    with database.snapshot() as session:
        if database.engine.dialect.name == "postgresql":
            assert session.scalar(text("SHOW statement_timeout")) == "1min"
        else:
            assert "limit_s" not in session.connection().info


@pytest.mark.parametrize(("method", "url", "module", "name"), ROUTES)
def test_short_searches_do_not_wait_for_long_ones(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    url: str,
    module: ModuleType,
    name: str,
) -> None:
    """Three members each had a search of 5 s. Another one's of 20 ms waited for them."""
    hasty = settings.model_copy(update={"write_wait_s": 0.05})
    with served(hasty) as api, ExitStack() as held:
        state = api.app.state  # type: ignore[attr-defined]
        assert api.portal is not None

        def hold(place: AbstractAsyncContextManager[None]) -> None:
            assert api.portal is not None
            held.enter_context(api.portal.wrap_async_context_manager(place))

        def status() -> int:
            answer = api.request(method, url)
            assert state.readers.taken == state.writers.taken == 0
            return answer.status_code

        usual = status()
        assert usual in (200, 202)
        limiter: FairLimiter = state.searches
        for user in (7, 8, 9):
            hold(limiter.one(user))
        assert status() == usual
        with monkeypatch.context() as patched:
            slowly(module, name, patched)
            assert status() == 503
            held.close()
            assert status() == 422
        check_usual_limit(state.database)
        hold(limiter.own(1))
        assert status() == 503
        held.close()
        assert status() == usual


def test_other_lists_wait_for_no_search(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the same limit of time."""
    url = "/v1/experiments?status=queued&order_by=name desc"
    hasty = settings.model_copy(update={"write_wait_s": 0.05})
    with served(hasty) as api:
        assert api.portal is not None
        limiter: FairLimiter = api.app.state.searches  # type: ignore[attr-defined]
        with api.portal.wrap_async_context_manager(limiter.own(1)):
            assert api.get(url).status_code == 200
        slowly(experiment_queries, "page_of", monkeypatch)
        answer = api.get(url)
        assert answer.status_code == 422
        assert "took longer than 0.2 s" in answer.json()["errors"][0]["detail"]


def hold_large_answers(api: TestClient, held: ExitStack) -> None:
    state = api.app.state  # type: ignore[attr-defined]
    assert api.portal is not None
    for user in (7, 8):
        place = state.large_answers.one(user)
        held.enter_context(api.portal.wrap_async_context_manager(place))


PAGES = [
    ("metrics=lml&metrics=mpt", "SMALL_METRICS"),
    ("fields=full", "SMALL_SPECS_BYTES"),
    ("fields=summary", "SMALL_TEXTS"),
    ("whose=mine", "SMALL_TEXTS"),
]


@pytest.mark.parametrize(("query", "small"), PAGES)
def test_large_pages_wait_for_large_answers_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, query: str, small: str
) -> None:
    """Their search was fast, so they wait for no slow ones: three members had searches of 5 s, and
    two others asked for large pages, which held the places of large answers meanwhile."""
    hasty = settings.model_copy(update={"write_wait_s": 0.05})
    with served(hasty) as api, ExitStack() as held:
        state = api.app.state  # type: ignore[attr-defined]
        assert api.portal is not None
        for name in "ab":
            succeeded(state.database, name, note="two words", tags=["x"])
        url = f"/v1/experiments?limit=9&{query}"
        expected = api.get(url).json()
        assert len(expected["items"]) == 2
        hold_large_answers(api, held)
        assert api.get(url).json() == expected
        monkeypatch.setattr(long_reads, small, 3)
        assert api.get(url).status_code == 503
        held.close()
        for user in (7, 8, 9):
            place = state.searches.one(user)
            held.enter_context(api.portal.wrap_async_context_manager(place))
        assert api.get(url).json() == expected


def test_presets_runs_with_large_texts_wait_for_large_answers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 500 experiments with a preset's tag are read."""
    hasty = settings.model_copy(update={"write_wait_s": 0.05})
    with served(hasty) as api, ExitStack() as held:
        database: Database = api.app.state.database  # type: ignore[attr-defined]
        succeeded(database, "a", note="x" * 100, tags=["preset:fig4-left", "part:1"])
        hold_large_answers(api, held)
        monkeypatch.setattr(long_reads, "SMALL_TEXTS", 200)
        assert api.get("/v1/presets:runs").status_code == 200
        monkeypatch.setattr(long_reads, "SMALL_TEXTS", 100)
        assert api.get("/v1/presets:runs").status_code == 503


def test_a_verdict_reads_only_as_many_experiments_as_the_preset_has(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three members asked for verdicts on 100 experiments with large specs each."""
    read: list[str] = []
    monkeypatch.setattr(presets, "find_readable", lambda *a: read.append(a[-1]))
    hasty = settings.model_copy(update={"write_wait_s": 0.05})
    with served(hasty) as api, ExitStack() as held:
        one = succeeded(api.app.state.database, "large")  # type: ignore[attr-defined]
        url = "/v1/presets/fig1-left/verdict?experiment="
        answer = api.get(url + f"&experiment={one}")
        assert "has 1 specs: give 1 experiments" in answer.json()["detail"]
        assert read == []
        hold_large_answers(api, held)
        assert api.get(url + one).status_code == 422
        assert read == [one]
        monkeypatch.setattr(long_reads, "SMALL_SPECS_BYTES", 3)
        assert api.get(url + one).status_code == 503


@pytest.mark.parametrize(("method", "url", "module", "name"), ROUTES[-4:])
def test_searches_are_limited_and_hold_no_lock(
    lab: Settings,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    url: str,
    module: ModuleType,
    name: str,
) -> None:
    """A filter of one member read thousands of large specs for a minute. A request that cancels
    looks for the experiments before it begins to write."""
    slowly(module, name, monkeypatch)
    for mine in (lab, settings):
        statements: list[str] = []
        headers = {"Authorization": f"Bearer {mine.key_file.read_text().strip()}"}
        app = create_app(mine)
        with TestClient(app, headers=headers) as api:
            database: Database = app.state.database
            event.listen(
                database.engine,
                "before_cursor_execute",
                lambda *a: statements.append(a[2]),  # noqa: B023
            )
            answer = api.request(method, url)
            assert answer.status_code == 422, answer.text
            assert limits_of(statements) == (["100", "200"] if mine is lab else [])
            assert "BEGIN IMMEDIATE" not in statements
            check_usual_limit(database)


def test_a_search_before_a_change_needs_no_writers_place(settings: Settings) -> None:
    """It is refused at once, whatever the writers do."""
    hasty = settings.model_copy(update={"write_wait_s": 0.05})
    with served(hasty) as api:
        writers: FairLimiter = api.app.state.writers  # type: ignore[attr-defined]
        assert api.portal is not None
        with api.portal.wrap_async_context_manager(writers.one(9, is_long=affirmed)):
            assert api.post("/v1/experiments:cancel?q=a").status_code == 503
            assert api.post("/v1/experiments:cancel").status_code == 422
            assert api.post("/v1/experiments:cancel?whose=all&filter=no").status_code == 422


def log_lines(database: Database, experiment_id: str) -> None:
    data = {"level": "info", "message": "one"}
    with database.transaction() as session:
        for seq in range(5):
            session.add(Event(experiment_id=experiment_id, seq=seq, kind="log", data=data))


LARGE = [
    ("GET", "/v1/experiments/{id}", "SMALL_METRICS"),
    ("GET", "/v1/experiments/{id}/metrics", "SMALL_METRICS"),
    ("POST", "/v1/experiments:batchGet", "SMALL_METRICS"),
    ("POST", "/v1/experiments:batchGet", "SMALL_SPECS_BYTES"),
    ("GET", "/v1/experiments/{id}/curves", "SMALL_POINTS"),
    ("GET", "/v1/experiments/{id}/curves/score", "SMALL_POINTS"),
    ("POST", "/v1/curves:batchGet", "SMALL_POINTS"),
    ("POST", "/v1/curves:batchGet", "SMALL_BATCH"),
    ("GET", "/v1/experiments/{id}/logs", "SMALL_LINES"),
    ("GET", "/v1/experiments/{id}/logs?limit=2", None),
    ("WAIT", "/v1/experiments/{id}", "SMALL_METRICS"),
]


@pytest.mark.parametrize(("method", "url", "small"), LARGE)
def test_a_process_makes_two_large_answers_at_a_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, method: str, url: str, small: str | None
) -> None:
    """Three members read 20,000 metrics in loops: others' lists took 1.7 s, submissions 3.6 s."""
    hasty = settings.model_copy(update={"write_wait_s": 0.05})
    with served(hasty) as api, ExitStack() as held:
        state = api.app.state  # type: ignore[attr-defined]
        assert api.portal is not None
        one = succeeded(state.database, "large")
        ids = [one, succeeded(state.database, "other")]
        log_lines(state.database, one)

        def status() -> int:
            if method == "WAIT":
                answer = api.get(url.format(id=one), headers={"Prefer": "wait=1"})
            else:
                body = {"ids": ids} if method == "POST" else None
                answer = api.request(method, url.format(id=one), json=body)
            assert state.readers.taken == 0
            return answer.status_code

        hold_large_answers(api, held)
        assert status() == 200
        if small is None:  # a page that is small by its limit
            monkeypatch.setattr(long_reads, "SMALL_LINES", 2)
            assert status() == 200
            return
        monkeypatch.setattr(long_reads, small, 1)
        assert status() == 503
        held.close()
        assert status() == 200
        with api.portal.wrap_async_context_manager(state.large_answers.one(1)):
            assert status() == 503
        with api.portal.wrap_async_context_manager(state.large_answers.one(2)):
            assert status() == 200


def test_a_bundle_is_read_at_its_place(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine requests for bundles of 100,000 metrics each took 3.5 GB before they waited."""
    read: list[str] = []
    bundle_of = experiment_results._bundle

    def noted(database: Database, user: Caller, experiment_id: str) -> Any:
        read.append(experiment_id)
        return bundle_of(database, user, experiment_id)

    monkeypatch.setattr(experiment_results, "_bundle", noted)
    hasty = settings.model_copy(update={"write_wait_s": 0.05})
    with served(hasty) as api:
        state = api.app.state  # type: ignore[attr-defined]
        assert api.portal is not None
        url = f"/v1/experiments/{succeeded(state.database, 'large')}/bundle"
        with ExitStack() as held:
            for user in range(2, 2 + MAX_BUNDLES):
                place = state.bundles.one(user)
                held.enter_context(api.portal.wrap_async_context_manager(place))
            assert api.get(url).status_code == 503
            assert read == []
        assert api.get(url).content.startswith(b"PK")
        assert len(read) == 1


def test_nothing_is_read_for_a_client_that_has_gone(settings: Settings) -> None:
    """The work for three members that abandoned their requests went on for 40 s."""
    with served(settings) as api:
        app: Any = api.app

        async def made(method: str, place: Any, message: str) -> bool:
            async def receive() -> dict[str, str]:
                if message == "none":
                    await asyncio.sleep(9)
                return {"type": message}

            scope = {"type": "http", "app": app, "method": method, "headers": [], "state": {}}
            async with place(Request(scope, receive)):
                return True

        assert api.portal is not None
        for method, place, is_read in (
            ("GET", long_reads.large_answer, True),
            ("POST", long_reads.large_answer, True),
            ("GET", dependencies.reading, True),
            ("POST", dependencies._writing, False),
        ):
            assert api.portal.call(made, method, place, "none")
            if is_read:
                with pytest.raises(ApiError, match="the client has gone"):
                    api.portal.call(made, method, place, "http.disconnect")
            else:
                assert api.portal.call(made, method, place, "http.disconnect")
        assert app.state.large_answers.taken == app.state.readers.taken == 0


def test_rows_of_metrics_are_converted_a_few_at_a_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Converting 100,000 at once stopped all other threads for half a second."""
    sizes: list[int | None] = []
    partitions = Result.partitions

    def noted(self: Any, size: int | None = None) -> Any:
        sizes.append(size)
        return partitions(self, size)

    monkeypatch.setattr(Result, "partitions", noted)
    with served(settings) as api:
        database: Database = api.app.state.database  # type: ignore[attr-defined]
        one = succeeded(database, "large")
        with database.snapshot() as session:
            every = results.metrics(session, one)
            assert len(every) == 4
            assert results.metrics_of(session, [one], None) == {one: [*every]}
    assert sizes == [results.ROWS_AT_ONCE] * 2


def test_no_bundle_of_an_experiment_that_was_deleted_meanwhile(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request waits for its place for up to 20 s."""
    with served(settings) as api:
        one = succeeded(api.app.state.database, "large")  # type: ignore[attr-defined]
        bundle_of = experiment_results._bundle

        def late(database: Database, *rest: Any) -> Any:
            with database.transaction() as session:
                assert deletion.remove(session, session.get_one(Experiment, one))
            return bundle_of(database, *rest)

        monkeypatch.setattr(experiment_results, "_bundle", late)
        assert api.get(f"/v1/experiments/{one}/bundle").status_code == 404
