"""Users and their keys: valid keys, their lifetime, and refusals of invalid ones."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text, update

from service.accounts import accounts
from service.accounts.keys import checksum, digest, new_key
from service.accounts.models import ApiKey
from service.app import create_app
from service.operations.prepare import prepare
from service.settings import Settings
from service.vocabulary import ROLE_SCOPES, Role, Scope
from tests.support.callers import bearer, database_of, member
from tests.support.ppca_spec import ppca_spec

ME = "/v1/me"


def told(api: TestClient, key: str) -> str:
    answer = api.get(ME, headers=bearer(key))
    assert answer.status_code == 401
    detail: str = answer.json()["detail"]
    return detail


def test_a_mistyped_key_is_refused_without_a_query(
    admin: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = member(admin)["key"]
    unknown = new_key()
    for wrong in (unknown, key.rpartition("_")[0]):  # the other one lacks its checksum
        assert "no such API key" in told(admin, wrong)

    def look(*_: object) -> None:
        raise AssertionError("the database was asked")

    monkeypatch.setattr("service.db.engine.Database.snapshot", look)
    for place in range(len("mpt_"), len(key)):
        typed = key[:place] + ("a" if key[place] != "a" else "b") + key[place + 1 :]
        if "_" in (key[place], typed[place]):
            continue
        assert "mistyped" in told(admin, typed)
    assert "mistyped" in told(admin, key[:-1])
    assert "no API key" in told(admin, key.rpartition("_")[0].rpartition("_")[0])


def test_the_checksum_of_a_key_equals_that_of_github_tokens() -> None:
    """Use 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, which GitHub published as an example."""
    assert checksum("zQWBuTSOoRi4A9spHcVY5ncnsDkxkJ") == "0mLq17"


def test_keys_of_earlier_versions_are_accepted(admin: TestClient) -> None:
    secret = "5" * 64
    with database_of(admin).transaction() as session:
        user = accounts.find(session, "local")
        assert user is not None
        scopes = list(ROLE_SCOPES[Role.ADMIN])
        session.add(ApiKey(id="0123", user_id=user.id, secret_sha256=digest(secret), scopes=scopes))
    assert admin.get(ME, headers=bearer(f"mpt_0123_{secret}")).json()["name"] == "local"
    assert "no such API key" in told(admin, f"mpt_0123_{secret[:-1]}6")


def test_a_revoked_key_ends_at_once_in_every_process(processes: list[TestClient]) -> None:
    one, other = processes
    key = member(one)
    second = one.post("/v1/users/ann/keys", json={}).json()

    def serves(made: dict[str, Any]) -> bool:
        return {api.get(ME, headers=bearer(made["key"])).status_code for api in processes} == {200}

    assert serves(key)
    assert serves(second)
    assert one.delete(f"/v1/users/ann/keys/{key['id']}").status_code == 204
    assert "revoked" in told(other, key["key"])
    assert serves(second)
    one.patch("/v1/users/ann", json={"active": False})
    assert "disabled" in told(other, second["key"])
    one.patch("/v1/users/ann", json={"active": True})
    assert serves(second)
    one.patch("/v1/users/ann", json={"role": "viewer"})
    assert other.get(ME, headers=bearer(second["key"])).json()["scopes"] == ["read", "metrics"]
    with database_of(one).transaction() as session:
        over = update(ApiKey).where(ApiKey.id == second["id"]).values(expires_at=1.0)
        session.execute(over)
    assert "expired" in told(other, second["key"])


def test_a_key_expires_at_its_date(admin: TestClient) -> None:
    key = member(admin, lasts_days=1e-9)
    assert "expired" in told(admin, key["key"])
    longer = admin.post("/v1/users/ann/keys", json={"lasts_days": 30}).json()
    assert admin.get(ME, headers=bearer(longer["key"])).status_code == 200


def test_a_key_is_shown_once_and_not_stored(admin: TestClient) -> None:
    made = member(admin, name="laptop")
    secret = made["key"].split("_")[2]
    (listed,) = admin.get("/v1/users/ann/keys").json()["items"]
    assert listed == {name: value for name, value in made.items() if name != "key"}
    with database_of(admin).snapshot() as session:
        rows = [
            *session.execute(text("SELECT * FROM api_keys")),
            *session.execute(text("SELECT * FROM audit")),
        ]
    assert rows
    assert secret not in str(rows)
    assert secret.encode() not in b"".join(bytes(v) for row in rows for v in row
                                           if isinstance(v, bytes | memoryview))  # fmt: skip


def test_the_last_use_of_a_key_is_shown(admin: TestClient) -> None:
    """To the minute: it is written once in that time."""
    made = member(admin)

    def last_use() -> Any:
        return admin.get("/v1/users/ann/keys").json()["items"][0]["last_used_at"]

    assert last_use() is None
    admin.get(ME, headers=bearer(made["key"]))
    assert last_use() is not None
    with database_of(admin).transaction() as session:
        aged = update(ApiKey).where(ApiKey.id == made["id"])
        session.execute(aged.values(last_used_at=1000.0))
    admin.app.state.noted_keys.clear()  # type: ignore[attr-defined]  # as another process
    admin.get(ME, headers=bearer(made["key"]))
    assert not last_use().startswith("1970")


def test_a_key_has_no_scope_beyond_its_users_role(admin: TestClient) -> None:
    admin.post("/v1/users", json={"name": "vic", "role": "viewer"})
    answer = admin.post("/v1/users/vic/keys", json={"scopes": ["read", "submit"]})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["pointer"], "not submit" in error["detail"]) == ("/scopes", True)
    assert admin.get("/v1/users/vic/keys").json()["items"] == []
    key = admin.post("/v1/users/vic/keys", json={"scopes": ["metrics"]}).json()
    assert admin.get(ME, headers=bearer(key["key"])).json()["scopes"] == ["metrics"]


def test_a_missing_scope_is_named(admin: TestClient) -> None:
    key = member(admin, scopes=["read"])["key"]
    answer = admin.post("/v1/experiments", json={}, headers=bearer(key))
    assert (answer.status_code, answer.json()["reason"]) == (403, "scope_missing")
    assert "lacks the scope submit" in answer.json()["detail"]
    answer = admin.get("/v1/users", headers=bearer(key))
    assert (answer.status_code, answer.json()["reason"]) == (403, "role_insufficient")
    assert "which a member cannot have" in answer.json()["detail"]


def test_there_is_always_an_admin(admin: TestClient) -> None:
    for change in ({"role": "member"}, {"active": False}):
        answer = admin.patch("/v1/users/local", json=change)
        assert (answer.status_code, answer.json()["reason"]) == (409, "last_admin")
    assert admin.get(ME).json()["role"] == "admin"
    admin.post("/v1/users", json={"name": "ann", "role": "admin"})
    assert admin.patch("/v1/users/local", json={"role": "member"}).status_code == 200
    assert admin.get(ME).json()["scopes"] == ["read", "submit", "cancel", "metrics"]


@pytest.mark.parametrize("name", ["api", "housekeeping"])
def test_no_user_has_the_name_of_a_process_in_the_audit(admin: TestClient, name: str) -> None:
    answer = admin.post("/v1/users", json={"name": name})
    assert (answer.status_code, answer.json()["reason"]) == (409, "name_taken")


def test_user_names_are_unique(admin: TestClient) -> None:
    assert admin.post("/v1/users", json={"name": "ann"}).status_code == 201
    answer = admin.post("/v1/users", json={"name": "ann", "role": "admin"})
    assert (answer.status_code, answer.json()["reason"]) == (409, "name_taken")
    names = [(one["name"], one["role"]) for one in admin.get("/v1/users").json()["items"]]
    assert names == [("ann", "member"), ("local", "admin")]


@pytest.mark.parametrize("name", ["", "Ann", "a b", "a/b", "-a", "a" * 65, "a\n", "é", "a\u0000"])
def test_a_bad_name(shared_api: TestClient, name: str) -> None:
    answer = shared_api.post("/v1/users", json={"name": name})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/name"


def test_the_first_admin(place: Settings) -> None:
    """Made by `mpt migrate` and `mpt serve`; its key is replaced if it is no longer valid."""
    first = place.key_file.read_text().strip()
    prepare(place)
    assert place.key_file.read_text().strip() == first
    with TestClient(create_app(place), headers=bearer(first)) as api:
        me = api.get(ME).json()
        assert (me["name"], me["role"]) == ("local", "admin")
        assert me["scopes"] == [scope.value for scope in Scope]
        assert api.delete(f"/v1/users/local/keys/{me['key_id']}").status_code == 204
        prepare(place)
        second = place.key_file.read_text().strip()
        assert second != first
        assert place.key_file.stat().st_mode & 0o777 == 0o600
        assert api.get(ME, headers=bearer(second)).status_code == 200
        assert "revoked" in told(api, first)


def test_an_admin_sets_the_queue_settings_of_a_user(admin: TestClient) -> None:
    ann = bearer(member(admin)["key"])
    standing = {"shares": 3, "max_running": 2, "max_submitted": 1,
                "max_gpu_hours_a_day": 1.5, "may_jump": True}  # fmt: skip
    assert admin.patch("/v1/users/ann", json=standing).json().items() >= standing.items()
    own = admin.get("/v1/queue", headers=ann).json()
    assert (own["share"]["raw_shares"], own["max_running"], own["max_submitted"]) == (3, 2, 1)
    assert (own["gpu_hours"], own["max_gpu_hours_a_day"]) == (0, 1.5)
    for limit in (0, None):
        changed = admin.patch("/v1/users/ann", json={"max_running": limit, "role": "member"}).json()
        assert changed.items() >= (standing | {"max_running": limit}).items()
    admin.patch("/v1/users/ann", json={"max_submitted": 0})
    refused = admin.post("/v1/experiments", json={"spec": ppca_spec()}, headers=ann)
    assert (refused.status_code, "your limit is 0" in refused.json()["detail"]) == (409, True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("shares", 0), ("shares", 10_001), ("shares", None), ("max_running", -1),
     ("max_submitted", 2**31), ("max_gpu_hours_a_day", -1.0), ("may_jump", None)],
)  # fmt: skip
def test_invalid_settings_of_a_user_are_refused(
    shared_api: TestClient, field: str, value: int | None
) -> None:
    answer = shared_api.patch("/v1/users/local", json={field: value})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == f"/{field}"


def test_a_change_cannot_raise_the_priority_above_the_limit(admin: TestClient) -> None:
    ann = bearer(member(admin)["key"])
    made = admin.post("/v1/experiments", headers=ann, json={"spec": ppca_spec()}).json()
    path = f"/v1/experiments/{made['id']}"
    refused = admin.patch(path, headers=ann, json={"priority": 101})
    assert (refused.status_code, refused.json()["reason"]) == (403, "may_not_jump")
    assert admin.patch(path, headers=ann, json={"priority": 100}).json()["priority"] == 100
    admin.patch("/v1/users/ann", json={"may_jump": True})
    assert admin.patch(path, headers=ann, json={"priority": 101}).json()["priority"] == 101
