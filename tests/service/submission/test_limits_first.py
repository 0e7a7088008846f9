"""A request that clearly exceeds a limit is refused before all of its points are prepared."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from service.accounts.models import User
from service.experiments.models import Experiment
from service.submission import preparation
from service.sweeps import expansion
from tests.service.accounts.test_users import database_of
from tests.service.sweeps.test_sweeps import SPEC, claim_next, finish, sweep

MANY: dict[str, Any] = {"grid": {"seeds": [[i] for i in range(100)]}}


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The submissions that are checked. Four are a sample."""
    monkeypatch.setattr(preparation, "SAMPLE", 4)
    found: list[Any] = []
    check = preparation._Checks.check

    def noted(self: Any, submission: Any, entry: Any) -> None:
        found.append(submission)
        check(self, submission, entry)

    monkeypatch.setattr(preparation._Checks, "check", noted)
    return found


def limit(api: TestClient, **limits: int) -> None:
    with database_of(api).transaction() as session:
        session.execute(update(User).where(User.id == 1).values(**limits))


def share(api: TestClient, **changes: int) -> None:
    settings = api.app.state.settings  # type: ignore[attr-defined]
    changed = {"share": settings.share.model_copy(update=changes)}
    api.app.state.settings = settings.model_copy(update=changed)  # type: ignore[attr-defined]


def refused(api: TestClient, path: str, body: Any) -> dict[str, Any]:
    answer = api.post(path, json=body)
    assert answer.status_code in (409, 422), answer.text
    told: dict[str, Any] = answer.json()
    return told


@pytest.mark.parametrize("kind", ["sweep", "points", "batch"])
def test_more_points_than_their_owner_may_have(
    api: TestClient, checked: list[Any], kind: str
) -> None:
    path, body = "/v1/sweeps", {"spec": SPEC, **MANY}
    if kind == "points":
        path, body = sweep(api, list=[{}], cache=False)["urls"]["points"], MANY
        api.post("/v1/experiments:cancel?status=queued")
    if kind == "batch":
        path = "/v1/experiments:batch"
        body = {"experiments": [{"spec": {**SPEC, "seeds": [i]}} for i in range(100)]}
    limit(api, max_submitted=92)
    checked.clear()
    told = refused(api, path, body)
    assert told["reason"] == "limit_reached"
    assert told["detail"].endswith("these are 100 more")
    assert len(checked) == 4
    limit(api, max_submitted=93)  # a sixteenth may be cached: all are prepared
    assert refused(api, path, body)["reason"] == "limit_reached"
    assert len(checked) == 4 + 4 + 100
    limit(api, max_submitted=100)
    assert api.post(path, json=body).status_code == 202


def test_a_cached_point_hides_no_others(api: TestClient, checked: list[Any]) -> None:
    """Its share of the sample counts, less a margin."""
    sweep(api, list=[{}])
    finish(database_of(api), claim_next(database_of(api)))
    seeds = [SPEC.get("seeds", [0]), *([i] for i in range(100, 199))]
    body = {"spec": SPEC, "grid": {"seeds": seeds}}
    limit(api, max_submitted=50)
    checked.clear()
    assert refused(api, "/v1/sweeps", body)["reason"] == "limit_reached"
    assert len(checked) == 4
    limit(api, max_submitted=60)  # 0.57 of all are surely new, as far as the sample tells
    assert refused(api, "/v1/sweeps", body)["reason"] == "limit_reached"
    assert len(checked) == 4 + 4 + 100


def test_points_that_the_cache_answers_do_not_count(api: TestClient, checked: list[Any]) -> None:
    sweep(api, list=[{}])
    finish(database_of(api), claim_next(database_of(api)))
    limit(api, max_submitted=0)
    same: dict[str, Any] = {"list": [{}] * 100}
    assert sweep(api, **same)["counts"]["succeeded"] == 100
    told = refused(api, "/v1/sweeps", {"spec": SPEC, **same, "cache": False})
    assert told["reason"] == "limit_reached"
    assert len(checked) == 1 + 4 + 100 + 4


def test_defaults_that_make_the_specs_too_large(
    api: TestClient, checked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep(api, **MANY)
    assert len(checked) == 4 + 100
    with database_of(api).snapshot() as session:
        least = session.scalar(select(func.min(Experiment.spec_bytes))) or 0
    monkeypatch.setattr(expansion, "MAX_STORED_BYTES", 93 * least - 1)
    checked.clear()
    told = refused(api, "/v1/sweeps", {"spec": SPEC, **MANY})
    assert "a request may store" in told["errors"][0]["detail"]
    assert len(checked) == 4


def test_more_bytes_than_their_owner_may_keep(api: TestClient, checked: list[Any]) -> None:
    limit(api, max_bytes=10_000)
    assert refused(api, "/v1/sweeps", {"spec": SPEC, **MANY})["reason"] == "storage_quota"
    assert len(checked) == 4


def test_more_sweeps_than_their_owner_may_have(api: TestClient, checked: list[Any]) -> None:
    share(api, max_sweeps=0)
    assert refused(api, "/v1/sweeps", {"spec": SPEC, **MANY})["reason"] == "limit_reached"
    assert checked == []


def test_more_points_than_a_sweep_may_have(
    api: TestClient, checked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.submission.requests.MAX_POINTS", 100)
    points = sweep(api, list=[{}])["urls"]["points"]
    checked.clear()
    assert refused(api, points, MANY)["errors"][0]["detail"] == "a sweep has at most 100 points"
    assert checked == []
