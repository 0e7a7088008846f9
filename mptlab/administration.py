"""The users, their keys, and what the lab does: for admins most of it."""

from collections.abc import Iterator
from typing import Any

from mptlab.connection import Connection
from mptlab.errors import Json


class Administration(Connection):
    """The part of the client that is about the lab and not about experiments."""

    def users(self) -> list[Json]:
        """All users; for admins, as what follows."""
        return self._items("/v1/users")

    def add_user(self, name: str, role: str = "member") -> Json:
        return self._call("POST", "/v1/users", json={"name": name, "role": role})

    def change_user(self, name: str, **changes: Any) -> Json:
        """Another `role`, or `active=False`: the user's keys serve no longer."""
        return self._call("PATCH", f"/v1/users/{name}", json=changes)

    def keys(self, name: str) -> list[Json]:
        """A user's keys: your own, or for an admin anyone's."""
        return self._items(f"/v1/users/{name}/keys")

    def add_key(self, user: str, **how: Any) -> Json:
        """A new key of a user's, shown in `key` this once; `how` is name (what it is for), scopes,
        lasts_days."""
        return self._call("POST", f"/v1/users/{user}/keys", json=how)

    def revoke_key(self, name: str, key_id: str) -> None:
        """Revoke a key: it serves no request that comes after."""
        self._call("DELETE", f"/v1/users/{name}/keys/{key_id}")

    def audit(self, **filters: Any) -> Iterator[Json]:
        """Yield the entries of the audit log, newest first. `actor` and `object_id` filter."""
        return self._pages("/v1/audit", filters)

    def queue(self) -> Json:
        """Your share of the server and your limits, and what you have waiting, next first."""
        return self._call("GET", "/v1/queue")

    def workers(self) -> list[Json]:
        """The workers that live."""
        return self._items("/v1/workers")

    def worker_history(self, hours: int = 6) -> Json:
        """Return how busy the workers were over the last hours, at most 24, and their free memory:
        a list for each of `items`, at the times in `at`."""
        return self._call("GET", "/v1/workers/history", params={"hours": hours})

    def usage(self) -> list[Json]:
        """List how the users share the server, the most recent heavy users first; for admins."""
        return self._items("/v1/usage")

    def retention(self) -> Json:
        """List what retention would delete now, by owner and cause; for admins."""
        return self._call("GET", "/v1/retention")
