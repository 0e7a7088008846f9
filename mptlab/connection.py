"""Connection to the service: its URL, the key, retries, and the parsing of its responses."""

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Self

import httpx

from mptlab.config import STORE, access_of, served_url
from mptlab.errors import Json, NoAnswer, Refused
from mptlab.retries import is_busy, retry_s, send_again
from mptlab.specs import to_json

log = logging.getLogger(__name__)
IDLE_S = 2.0
"""Seconds after which an idle connection is not used again. The service closes it after five, and a
request that meets this end is lost; not all may be repeated."""
WAITS_AT_FULL_PACE = 10
"""Number of concurrent waits that poll at full rate; with more, each wait polls less often."""


class Connection:
    """Send requests to the service and return its responses as JSON.

    The URL is the argument, else MPT_URL, else the one stored by `mpt login`, else this machine's.
    The key is the argument, else MPT_API_KEY, else the one stored by `mpt login` for this URL,
    else, on this machine, the key in the embedded service's store (MPT_STORE). If the service does
    not answer or asks for a retry, requests that are safe to repeat are sent again for `for_s`
    seconds (else MPT_RETRY_S, else half a minute). `on_outage` is called once for each outage, even
    if many threads wait."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        timeout_s: float = 30.0,
        on_outage: Callable[[str], object] = log.warning,
        for_s: float | None = None,
    ):
        self.url, key, self._key_source = access_of(url, key)
        headers = {"Authorization": f"Bearer {key}"}
        limits = httpx.Limits(max_connections=100, keepalive_expiry=IDLE_S)
        # No proxy of the environment for this machine: it would see the key of its store.
        here = {f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")}
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout_s, limits=limits, mounts=here
        )
        self._on_outage = on_outage
        self._for_s = for_s
        self._waiting: set[object] = set()  # waits of all threads, which need no lock
        self._unanswered: set[object] = set()  # requests that have met the outage
        self._reporting = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        """Return whether the service answers."""
        try:
            response = self._http.get("/readyz")
            return response.is_success
        except httpx.TransportError:
            return False

    def _once(self, path: str, body: Json | None, idempotency_key: str | None) -> Json:
        """Send a request under an idempotency key, so that repeating it has no further effect."""
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
        return answer_of(self._send(send, idempotent=again))

    def _items(self, path: str) -> list[Json]:
        """Return the items of a list that has one page."""
        items: list[Json] = self._call("GET", path)["items"]
        return items

    def _listed(self, path: str, filters: Mapping[str, Any]) -> Iterator[Json]:
        """Yield the items of all pages of a list."""
        for page in self._pages(path, filters):
            yield from page["items"]

    def _content(self, path: str) -> bytes:
        """Return the bytes of a file."""
        send = partial(self._http.get, path)
        return checked(self._send(send, idempotent=True)).content

    def _pages(self, path: str, filters: Mapping[str, Any]) -> Iterator[Json]:
        """Yield the pages of a list."""
        cursor = None
        while True:
            query = {**filters, "cursor": cursor} if cursor else filters
            page = self._call("GET", path, params=query)
            yield page
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def _wait(
        self,
        path: str,
        timeout_s: float | None,
        on_change: Callable[[Json], object],
        poll_s: float,
        *,
        is_known: bool = False,
    ) -> Json:
        """Request an experiment or a sweep until it has ended, and return it. `on_change` is called
        with each document. An outage of the service does not end the wait after the first response,
        or at all if it `is_known` that the service has it. Raises TimeoutError."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        wait = object()
        self._waiting.add(wait)
        try:
            document = self._look(path, deadline) if is_known else self._call("GET", path)
            while True:
                on_change(document)
                if document["terminal"]:
                    return document
                if time.monotonic() > deadline:
                    reason = (document.get("queue") or {}).get("reason")
                    status = f"{document['status']} after {timeout_s} s"
                    why = "" if reason is None else f": {reason}"
                    raise TimeoutError(f"{document['id']} is {status}{why}")
                pause_s = poll_s * max(1.0, len(self._waiting) / WAITS_AT_FULL_PACE)
                time.sleep(max(0.0, min(pause_s, deadline - time.monotonic())))
                document = self._look(path, deadline)
        finally:
            self._waiting.discard(wait)

    def _look(self, path: str, deadline: float) -> Json:
        """Return a document that exists. Wait until `deadline` while the service is unreachable.
        Raises TimeoutError."""
        send = partial(self._http.get, path)
        try:
            for_s = max(0.0, deadline - time.monotonic())
            response = self._send(send, idempotent=True, for_s=for_s)
        except NoAnswer as error:
            raise TimeoutError(str(error)) from error
        if is_busy(response):
            raise TimeoutError(f"{self.url} does not answer: HTTP {response.status_code}")
        return answer_of(response)

    def _send(
        self,
        send: Callable[[], httpx.Response],
        *,
        idempotent: bool,
        for_s: float | None = None,
    ) -> httpx.Response:
        """Send a request and retry it for as long as the client allows, or for `for_s`. Raises
        NoAnswer, and Refused for a wrong key."""
        if for_s is None:
            for_s = retry_s() if self._for_s is None else self._for_s
        request = object()

        def report(cause: str) -> None:
            elsewhere = served_url() if self._key_source == STORE else None
            if elsewhere is not None and httpx.URL(elsewhere).port != httpx.URL(self.url).port:
                cure = f"this store is served at {elsewhere}; leave out MPT_URL and --url"
                raise NoAnswer(self.url, cause, cure)
            with self._reporting:
                if not self._unanswered:
                    self._on_outage(f"{self.url} does not answer ({cause}): retrying")
                self._unanswered.add(request)

        try:
            response = send_again(send, idempotent=idempotent, for_s=for_s, on_outage=report)
        except httpx.TransportError as error:
            raise NoAnswer(self.url, error) from error
        finally:
            self._unanswered.discard(request)
        if response.status_code == 401:
            # Where the key comes from, and how to change it
            document = _document(response)
            reason = f"{self.url} refuses the key from {self._key_source}: {document.get('detail')}"
            cure = f"`mpt login --url {self.url}` stores another key"
            raise Refused({**document, "detail": f"{reason}; {cure}"}, response.status_code)
        return response


def checked(response: httpx.Response) -> httpx.Response:
    """Return the response if it is a success. Raises Refused."""
    if response.is_error:
        raise Refused(_document(response), response.status_code)
    if response.has_redirect_location:
        detail = f"{response.url} leads to {response.headers['Location']}: use that URL"
        raise Refused({"detail": detail}, response.status_code)
    return response


def answer_of(response: httpx.Response) -> Json:
    """Return the JSON of a successful response, or an empty object if it has no body. Raises
    Refused."""
    content = checked(response).content
    if not content:
        return {}
    try:
        answer: Json = response.json()
    except ValueError:
        detail = f"the server at {response.url} is not MPT Lab: check the URL"
        raise Refused({"detail": detail}, response.status_code) from None
    return answer


def _document(response: httpx.Response) -> Json:
    try:
        document = response.json()
    except ValueError:
        document = None
    if isinstance(document, dict):
        return document
    if response.status_code == HTTPStatus.NOT_FOUND:
        return {"detail": f"the server at {response.url.host} is not MPT Lab: check the URL"}
    return {"detail": f"HTTP {response.status_code}"}
