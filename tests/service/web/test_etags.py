"""ETag and 304: nothing is sent twice, and nothing that has changed is kept back."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.accounts.users import ensure_key
from service.db.engine import Database
from service.queue import lease
from service.records.recording import Batch, record
from service.settings import Settings
from service.vocabulary import Status
from tests.support.attempts import claim_next, claimed

PATHS = ["", "/metrics", "/curves", "/curves/score"]


def batch(first: int) -> Batch:
    made = Batch()
    made.add({"seq": first, "record": "point", "series": "score", "labels": {"seed": 4},
              "x": first, "value": -1.0, "std_err": 0.1, "n": 1})  # fmt: skip
    made.add({"seq": first + 1, "record": "metric", "name": f"m{first}", "labels": {},
              "value": 1.0, "std_err": 0.0})  # fmt: skip
    return made


def ask(api: TestClient, url: str, tag: str | None = None, **how: Any) -> Any:
    return api.get(url, headers={"If-None-Match": tag} if tag else {}, **how)


@pytest.mark.parametrize("path", PATHS)
def test_unchanged_answers_are_not_sent_again(
    api: TestClient, database: Database, path: str
) -> None:
    claim = claimed(database)
    url = f"/v1/experiments/{claim.experiment_id}{path}"
    with database.transaction() as session:
        record(session, claim, batch(1), 60)
    first = ask(api, url)
    tag = first.headers["ETag"]
    assert first.headers["Cache-Control"] == "private, no-cache"
    assert first.headers["Vary"] == "Authorization, Cookie, Accept"
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = ask(api, url, known)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["ETag"] == tag
        assert again.headers["Cache-Control"] == "private, no-cache"
    assert ask(api, url, '"other"').status_code == 200
    with database.transaction() as session:
        record(session, claim, batch(3), 60)
    then = ask(api, url, tag)
    assert then.status_code == 200
    assert then.headers["ETag"] != tag
    with database.transaction() as session:
        lease.finish(session, claim, Status.SUCCEEDED)
    ended = ask(api, url, then.headers["ETag"])
    assert ended.status_code == (304 if path == "/metrics" else 200)
    assert ended.headers["Cache-Control"] == "private, no-cache"


@pytest.mark.parametrize("path", ["/curves", "/curves/score"])
def test_each_form_of_a_curve_has_its_own_tag(
    api: TestClient, database: Database, path: str
) -> None:
    claim = claimed(database)
    with database.transaction() as session:
        record(session, claim, batch(1), 60)
    url = f"/v1/experiments/{claim.experiment_id}{path}"
    queries: list[dict[str, str]] = [{}, {"format": "csv"}, {"format": "arrow"},
                                     {"max_points": "2"}, {"after": "1"},
                                     {"seed": "4"}]  # fmt: skip
    tags = [ask(api, url, params=query).headers["ETag"] for query in queries]
    assert len({*tags}) == len(queries)
    other = claimed(database).experiment_id
    assert ask(api, f"/v1/experiments/{other}{path}").headers["ETag"] not in tags


def test_another_attempt_has_another_tag(api: TestClient, database: Database) -> None:
    """The new attempt uses the same sequence numbers for other records."""
    claim = claimed(database)
    url = f"/v1/experiments/{claim.experiment_id}/curves"
    with database.transaction() as session:
        record(session, claim, batch(1), 60)
    tag = ask(api, url).headers["ETag"]
    with database.transaction() as session:
        lease.release(session, claim)
    again = claim_next(database)
    with database.transaction() as session:
        record(session, again, batch(1), 60)
    assert ask(api, url, tag).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_an_etag_gives_no_access(
    api: TestClient, database: Database, settings: Settings, path: str
) -> None:
    claim = claimed(database)
    url = f"/v1/experiments/{claim.experiment_id}{path}"
    assert ask(api, url, "*").status_code == 304
    with database.transaction() as session:
        ensure_key(session, "other", settings.store / "other-key")
    key = (settings.store / "other-key").read_text().strip()
    api.headers["Authorization"] = f"Bearer {key}"
    assert ask(api, url, "*").status_code == 404
