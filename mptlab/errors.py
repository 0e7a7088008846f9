"""Errors that the client raises."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

AWAY = (502, 503, 504)
"""HTTP statuses of temporary failures."""


class Refused(Exception):
    """The service refused a request (a problem document, RFC 9457). The message is its sentence;
    `document` is the whole document."""

    def __init__(self, document: Json, status: int | None = None):
        super().__init__(document.get("detail") or document.get("title") or str(document))
        self.document = document
        self.status = status
        """HTTP status; None if the client itself refused."""

    @property
    def reason(self) -> str | None:
        """Stable error code for programs, such as wrong_state."""
        return self.document.get("reason")

    @property
    def errors(self) -> list[dict[str, str]]:
        """Every problem with the request: `pointer`, a JSON pointer to the field, and `detail`."""
        return self.document.get("errors") or []

    @property
    def is_away(self) -> bool:
        """True if the service could not answer now, and the request may be sent again."""
        return self.status in AWAY


START = "`mpt serve` starts a service on this machine; MPT_URL or `mpt login` names another"


class NoAnswer(ConnectionError):
    """Error if nothing answers at the URL; the message gives the URL, the cause and what to do."""

    def __init__(self, url: str, cause: object, cure: str = START):
        super().__init__(f"{url} does not answer ({cause}): {cure}")
        self.url = url


class NotSucceeded(Exception):
    """The awaited experiment failed or was cancelled. `document` is its last state."""

    def __init__(self, document: Mapping[str, Any]):
        super().__init__(_ending(document))
        self.document = document


def _ending(document: Mapping[str, Any]) -> str:
    name = f" ({document['name']})" if document.get("name") else ""
    if counts := document.get("counts"):  # a sweep's
        bad = [f"{counts[end]} {end}" for end in ("failed", "cancelled") if counts.get(end)]
        return f"{document['id']}{name}: of {document['points']} points, {' and '.join(bad)}"
    failure = document.get("failure")
    reason = f": {failure['kind']}: {failure['message']}" if failure else ""
    return f"{document['id']}{name} {document['status']}{reason}"
