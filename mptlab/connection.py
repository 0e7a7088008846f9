"""The connection to the service: where it is, with which key, and what is sent again."""

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx
from platformdirs import user_data_path

from mptlab import login
from mptlab.errors import Json, NoAnswer, Refused
from mptlab.retries import is_busy, retry_s, send_again
from mptlab.specs import to_json

log = logging.getLogger(__name__)

DEFAULT_URL = "http://127.0.0.1:8765"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Connection:
    """Requests to the service, with its answers as JSON.

    The URL is that given, else MPT_URL, else that of `mpt login`, else this machine's. The key is
    that given, else MPT_API_KEY, else that of `mpt login` at this URL, else, on this machine, what
    the embedded service left in its store (MPT_STORE).

    A request that may be sent again is, where the service does not answer or asks for it, for
    `for_s` seconds (else MPT_RETRY_S, else half a minute); `on_outage` is told, once.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        timeout_s: float = 30.0,
        on_outage: Callable[[str], object] = log.warning,
        for_s: float | None = None,
    ):
        kept = login.kept()
        self.url = (url or os.environ.get("MPT_URL") or kept.url or DEFAULT_URL).rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise Refused({"detail": f"{self.url} is no URL: it begins with http:// or https://"})
        key = key or os.environ.get("MPT_API_KEY") or kept.key_for(self.url) or _local_key(self.url)
        if not (key.isascii() and key.isprintable()):
            raise Refused({"detail": "the API key holds a character that no key has: copy it anew"})
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s)
        self._on_outage = on_outage
        self._for_s = for_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        """Whether the service answers."""
        try:
            return self._http.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def _once(self, path: str, body: Json | None, idempotency_key: str | None) -> Json:
        """Send what is to be done once however often it is sent."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return self._call("POST", path, headers=headers, json=body)

    def _call(
        self, method: str, path: str, *, idempotent: bool = False, json: Any = None, **options: Any
    ) -> Json:
        headers = options.pop("headers", {})
        if json is not None:
            options["content"] = to_json(json)
            headers = {**headers, "Content-Type": "application/json"}
        again = idempotent or method == "GET" or "Idempotency-Key" in headers
        send = partial(self._http.request, method, path, headers=headers, **options)
        return _answer(self._send(send, idempotent=again))

    def _pages(self, path: str, filters: Mapping[str, Any]) -> Iterator[Json]:
        cursor = None
        while True:
            query = {**filters, "cursor": cursor} if cursor else filters
            page = self._call("GET", path, params=query)
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def _look(self, path: str, deadline: float) -> Json:
        """How it stands with what is there, however long the service is away."""
        send = partial(self._http.get, path)
        for_s = max(0.0, deadline - time.monotonic())
        try:
            response = self._persist(send, idempotent=True, for_s=for_s)
        except httpx.TransportError as error:
            raise TimeoutError(f"{self.url} does not answer: {error}") from error
        if is_busy(response):
            raise TimeoutError(f"{self.url} does not answer: HTTP {response.status_code}")
        return _answer(response)

    def _send(
        self, send: Callable[[], httpx.Response], *, idempotent: bool, for_s: float | None = None
    ) -> httpx.Response:
        """Send, and send again: for as long as the client does, or `for_s`. Raises NoAnswer."""
        if for_s is None:
            for_s = retry_s() if self._for_s is None else self._for_s
        try:
            return self._persist(send, idempotent=idempotent, for_s=for_s)
        except httpx.TransportError as error:
            raise NoAnswer(self.url, error) from error

    def _persist(
        self, send: Callable[[], httpx.Response], *, idempotent: bool, for_s: float
    ) -> httpx.Response:
        return send_again(send, idempotent=idempotent, for_s=for_s, on_outage=self._tell)

    def _tell(self, cause: str) -> None:
        self._on_outage(f"{self.url} does not answer ({cause}): trying again")


def checked(response: httpx.Response) -> httpx.Response:
    """The response where it is a success. Raises Refused."""
    if response.is_error:
        raise Refused(_document(response), response.status_code)
    return response


def store() -> Path:
    """Where the embedded service keeps everything: MPT_STORE, or the user's data directory."""
    given = os.environ.get("MPT_STORE")
    return Path(given) if given else user_data_path("mptlab")


def _answer(response: httpx.Response) -> Json:
    content = checked(response).content
    if not content:
        return {}
    try:
        answer: Json = response.json()
    except ValueError:
        detail = f"what answers at {response.url} is not MPT Lab: is the URL right?"
        raise Refused({"detail": detail}, response.status_code) from None
    return answer


def _local_key(url: str) -> str:
    """That of the service on this machine, which goes to no other."""
    key_file = store() / "api-key"
    if httpx.URL(url).host not in LOOPBACK:
        detail = f"no API key for {url}: set MPT_API_KEY, or `mpt login --url {url}`"
        raise Refused({"detail": detail})
    try:
        return key_file.read_text().strip()
    except FileNotFoundError:
        detail = f"no API key: set MPT_API_KEY, or start `mpt serve`, which writes {key_file}"
        raise Refused({"detail": detail}) from None


def _document(response: httpx.Response) -> Json:
    try:
        document = response.json()
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"detail": f"HTTP {response.status_code}"}
