"""Searches: a short first try, few places for those that take longer, and a limit of their time."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from types import ModuleType
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from service.limiter import FairLimiter
from service.settings import Settings
from service.tables.engine import Database
from service.tables.experiments import Metric
from service.web import searches
from service.web.main import create_app
from service.web.routes import experiment_queries, experiments, presets
from tests.service.web.test_pools import affirmed, served
from tests.support.ppca_spec import ppca_spec

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
]


def slowly(module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a function that reads take minutes, and searches a moment."""
    read: Callable[..., Any] = getattr(module, name)

    def slow(session: Session, *rest: Any, **named: Any) -> Any:
        session.execute(SLOW)
        return read(session, *rest, **named)

    monkeypatch.setattr(module, name, slow)
    monkeypatch.setattr(searches, "FIRST_TRY_S", 0.1)
    monkeypatch.setattr(searches, "SEARCH_S", 0.2)


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


def test_a_list_with_many_metrics_is_a_long_search(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number is counted before they are read."""
    monkeypatch.setattr(experiment_queries, "FIRST_METRICS", 3)
    hasty = settings.model_copy(update={"write_wait_s": 0.05})
    body = {"experiments": [{"spec": ppca_spec(), "cache": False}] * 2}
    with served(hasty) as api:
        state = api.app.state  # type: ignore[attr-defined]
        ids = [one["id"] for one in api.post("/v1/experiments:batch", json=body).json()["items"]]
        with state.database.transaction() as session:
            for one in ids:
                for name in "ab":
                    session.add(Metric(experiment_id=one, name=name, labels="{}", seq=1, value=1.0))
        assert api.portal is not None
        with ExitStack() as held:
            for user in (7, 8, 9):
                place = state.searches.one(user)
                held.enter_context(api.portal.wrap_async_context_manager(place))
            assert api.get("/v1/experiments?metrics=a").status_code == 200
            assert api.get("/v1/experiments?metrics=a&metrics=b").status_code == 503
        items = api.get("/v1/experiments?metrics=a&metrics=b").json()["items"]
        assert [len(one["metrics"]) for one in items] == [2, 2]


@pytest.mark.parametrize(("method", "url", "module", "name"), ROUTES[-3:])
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
