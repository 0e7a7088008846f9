"""Webhooks by the API: created, listed, deleted; allowed URLs."""

import base64
import socket
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update
from sqlalchemy.orm import Session

from service.accounts.models import User
from service.app import create_app
from service.db.engine import Database, now
from service.queue import states
from service.settings import Settings
from service.vocabulary import DesiredState
from service.webhooks import store
from service.webhooks.models import Delivery, Webhook
from service.webhooks.routes import MAX_WEBHOOKS
from tests.support.attempts import submitted
from tests.support.callers import bearer

URL = "https://example.org/ended"


def secret(size: int) -> str:
    return f"whsec_{base64.b64encode(bytes(size)).decode()}"


def test_a_webhook_is_created_listed_and_deleted(api: TestClient) -> None:
    made = api.post("/v1/webhooks", json={"url": URL, "statuses": ["failed", "failed"]})
    assert made.status_code == 201, made.text
    shown = made.json()
    assert shown.pop("secret").startswith("whsec_")
    shown.pop("warning")
    assert shown["statuses"] == ["failed"]
    assert (shown["pending"], shown["given_up"], shown["last_error"]) == (0, 0, None)
    given = api.post("/v1/webhooks", json={"url": URL, "secret": secret(24)}).json()
    assert given.pop("secret") == secret(24)
    given.pop("warning")
    assert given["statuses"] == ["succeeded", "failed", "cancelled"]
    assert api.get("/v1/webhooks").json() == {"items": [shown, given]}
    assert api.delete(f"/v1/webhooks/{shown['id']}").status_code == 204
    assert api.delete(f"/v1/webhooks/{shown['id']}").status_code == 404
    assert api.get("/v1/webhooks").json() == {"items": [given]}


def test_the_state_of_a_webhooks_deliveries(api: TestClient, database: Database) -> None:
    api.post("/v1/webhooks", json={"url": URL})
    made = [submitted(database) for _ in range(4)]
    with database.transaction() as session:
        for one in made:
            states.request(session, one, DesiredState.CANCEL)
    stands: list[dict[str, Any]] = [
        {"next_at": None, "delivered_at": now()},
        {"next_at": None, "given_up_at": now(), "last_error": "gone"},
        {"last_error": "the answer was 500"},
    ]
    with database.transaction() as session:
        for one, columns in zip(made, stands, strict=False):
            of_one = update(Delivery).where(Delivery.experiment_id == one)
            session.execute(of_one.values(**columns))
    (found,) = api.get("/v1/webhooks").json()["items"]
    assert (found["pending"], found["given_up"]) == (2, 1)
    assert found["last_delivered_at"] is not None
    assert found["last_error"] == "the answer was 500"


def test_the_latest_error_of_each_webhook_is_shown(either: Database) -> None:
    ids = [submitted(either) for _ in range(5)]
    with either.transaction() as session:
        for webhook in "ab":
            for number, one in enumerate(ids):
                told = {"ended_at": float(number % 4), "last_error": f"{webhook}{number}"}
                session.add(
                    Delivery(webhook_id=webhook, experiment_id=one, status="failed", **told)
                )
    with either.snapshot() as session:
        assert store.last_errors(session, ["a", "b", "c"]) == {"a": "a3", "b": "b3"}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("url", "http://example.org/", "begins with https"),
        ("url", "ftp://example.org/", "begins with https"),
        ("url", "https://", "not a URL"),
        ("url", "mailto:ann@example.org", "with a host"),
        ("url", "example.org", "not a URL"),
        ("url", "https://ann:pass@example.org/", "without a name"),
        ("url", "https://example.org/#a", "a fragment"),
        ("url", "https://[", "not a URL"),
        ("url", "https://example.org:99999999/", "not a URL"),
        ("url", "https://example.org:22/", "80, 443 or above 1023"),
        ("url", "https://example.org:1023/", "80, 443 or above 1023"),
        ("url", "https://example.org:0/", "80, 443 or above 1023"),
        ("url", "https://127.0.0.1/", "not a public address"),
        ("url", "https://[::1]/", "not a public address"),
        ("url", "https://0x7f.1/", "not a public address"),
        ("url", "https://" + "x" * 2000, "2000"),
        ("url", "https://example.org/" + "é" * 1500, "2000 characters as it is sent"),
        ("secret", "abc", "whsec_"),
        ("secret", "whsec_???", "whsec_"),
        ("secret", "whsec_ä", "whsec_"),
        ("secret", secret(23), "24 to 64 bytes"),
        ("secret", secret(65), "24 to 64 bytes"),
        ("statuses", [], "at least 1"),
        ("statuses", ["running"], "'succeeded', 'failed' or 'cancelled'"),
    ],
)
def test_invalid_requests_are_refused(api: TestClient, field: str, value: Any, words: str) -> None:
    answer = api.post("/v1/webhooks", json={"url": URL, field: value})
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert error["pointer"].startswith(f"/{field}")
    assert words in error["detail"]


def test_settings_allow_http_and_private_addresses(settings: Settings) -> None:
    allowing = settings.model_copy(update={"webhooks_to_private": True})
    headers = bearer(settings.key_file.read_text().strip())
    with TestClient(create_app(allowing), headers=headers) as api:
        for url in ("http://example.org/", "http://127.0.0.1:8000/"):
            assert api.post("/v1/webhooks", json={"url": url}).status_code == 201
        assert api.post("/v1/webhooks", json={"url": "ftp://example.org/"}).status_code == 422


@pytest.mark.parametrize(
    ("addresses", "words"),
    [
        (["8.8.8.8"], None),
        (["10.0.0.7"], "has an address that is not public"),
        (["8.8.8.8", "10.0.0.7"], "has an address that is not public"),
        ([], "unknown"),
    ],
)
def test_a_host_that_no_notification_reaches_now_is_accepted_with_a_warning(
    api: TestClient, monkeypatch: pytest.MonkeyPatch, addresses: list[str], words: str | None
) -> None:
    """The warning must not reveal which names and addresses the network of the service has."""

    def look_up(*host: Any, **how: Any) -> Any:
        if not addresses:
            raise socket.gaierror
        return [(None, None, None, "", (address, 443)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for port in ("", ":80", ":443", ":1024"):
        made = api.post("/v1/webhooks", json={"url": f"https://hook.test{port}/"})
        assert made.status_code == 201, made.text
        warning = made.json()["warning"]
        assert (warning is None) == (words is None)
        assert (words or "") in (warning or "")
        assert "10." not in (warning or "")


def test_webhooks_of_a_user_are_limited(api: TestClient) -> None:
    answers = [api.post("/v1/webhooks", json={"url": URL}) for _ in range(MAX_WEBHOOKS + 1)]
    assert [one.status_code for one in answers] == [201] * MAX_WEBHOOKS + [409]
    assert answers[-1].json()["reason"] == "limit_reached"


def test_one_delivery_of_each_webhook_is_made_at_a_time_the_earliest_first(
    either: Database,
) -> None:
    """None of a user who is disabled, and none of a webhook that is being delivered to."""
    ids = [submitted(either) for _ in range(3)]
    with either.transaction() as session:
        session.add(User(id=2, name="gone", disabled_at=1.0))
        for name, owner_id in (("a", 1), ("b", 1), ("disabled", 2)):
            hook = {"url": "", "secret": "", "statuses": "failed"}
            session.add(Webhook(id=name, owner_id=owner_id, **hook))
            session.add_all(
                Delivery(webhook_id=name, experiment_id=one, status="failed", ended_at=0.0,
                         next_at=due)
                for one, due in zip(ids, (3.0, 2.0, 2.0), strict=True)
            )  # fmt: skip

    def claimed(session: Session, *busy: str) -> list[tuple[str, str]]:
        return sorted(
            (one.webhook_id, one.experiment_id) for one in store.claim(session, busy=busy)
        )

    first, second = sorted(ids[1:])
    with either.transaction() as session:
        assert store.is_due(session, busy=["a"])
        assert not store.is_due(session, busy=["a", "b"])
        assert claimed(session, "b") == [("a", first)]
        assert claimed(session) == [("a", second), ("b", first)]
