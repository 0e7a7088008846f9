"""Client methods for users, API keys, the audit log, workers and usage; most are for admins."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from mptlab.connection import Connection
from mptlab.errors import Json


class Administration(Connection):
    """Methods about the lab rather than about experiments."""

    def users(self) -> list[Json]:
        """List all users; for admins."""
        return self._items("/v1/users")

    def add_user(self, name: str, role: str = "member") -> Json:
        return self._call("POST", "/v1/users", json={"name": name, "role": role})

    def change_user(self, name: str, **changes: Any) -> Json:
        """Change the `role`, or disable the user with `active=False`: the user's keys are then
        refused."""
        return self._call("PATCH", f"/v1/users/{name}", json=changes)

    def keys(self, name: str) -> list[Json]:
        """List a user's keys: your own, or any user's if you are an admin."""
        return self._items(f"/v1/users/{name}/keys")

    def add_key(self, user: str, **how: Any) -> Json:
        """Create a key for a user. The key itself is in `key` and is shown only now. `how` is
        `name` (the purpose of the key), `scopes` and `lasts_days`."""
        return self._call("POST", f"/v1/users/{user}/keys", json=how)

    def revoke_key(self, name: str, key_id: str) -> None:
        """Revoke a key; later requests with it are refused."""
        self._call("DELETE", f"/v1/users/{name}/keys/{key_id}")

    def audit(self, **filters: Any) -> Iterator[Json]:
        """Yield the entries of the audit log, newest first. `actor` and `object_id` filter."""
        return self._pages("/v1/audit", filters)

    def queue(self) -> Json:
        """Return your share of the server, your limits, and your waiting experiments in queue
        order."""
        return self._call("GET", "/v1/queue")

    def workers(self) -> list[Json]:
        """List the live workers."""
        return self._items("/v1/workers")

    def drain(
        self, host: str, hand_back_after_s: float | None = None, lasts_s: float | None = None
    ) -> Json:
        """Let no further run start on a machine; for admins. Its runs are handed back after
        `hand_back_after_s` seconds (default: an hour, or half of a shorter drain). The drain ends
        after `lasts_s` seconds, or with `undrain`."""
        body = {"host": host, "hand_back_after_s": hand_back_after_s, "lasts_s": lasts_s}
        return self._call("POST", "/v1/drains", json=body)

    def undrain(self, host: str) -> None:
        """Let runs start on a drained machine again; for admins."""
        self._call("DELETE", f"/v1/drains/{quote(host, safe='')}")

    def worker_history(self, hours: int = 6) -> Json:
        """Return how busy the workers were over the last hours (at most 24) and their free memory:
        `at` holds the times, and each of `items` holds a list of values at those times."""
        return self._call("GET", "/v1/workers/history", params={"hours": hours})

    def usage(self) -> list[Json]:
        """List each user's use of the server, heaviest recent user first; for admins."""
        return self._items("/v1/usage")
