"""Callers of the API in tests."""

from typing import Any

from fastapi.testclient import TestClient

from service.db.engine import Database


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def database_of(api: TestClient) -> Database:
    database: Database = api.app.state.database  # type: ignore[attr-defined]
    return database


def member(admin: TestClient, user: str = "ann", **beside: Any) -> dict[str, Any]:
    """A new user, and a key of the user."""
    assert admin.post("/v1/users", json={"name": user}).status_code == 201
    made = admin.post(f"/v1/users/{user}/keys", json=beside)
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found
