"""A client whose requests are recorded and answered by the test."""

import json
from typing import Any

import httpx

from mptlab import Client


class Answers:
    """In place of a service: the same answer to all, or those given, one after the other."""

    def __init__(self) -> None:
        self.given: list[httpx.Response] = []
        self.seen: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.seen.append(request)
        return self.given.pop(0) if len(self.given) > 1 else self.given[0]

    def says(self, *documents: Any, status: int = 200) -> None:
        self.given = [httpx.Response(status, json=document) for document in documents]

    @property
    def sent(self) -> tuple[str, str, dict[str, str]]:
        """Method, path and query of the one request."""
        (request,) = self.seen
        return request.method, request.url.path, dict(request.url.params)

    @property
    def body(self) -> Any:
        return json.loads(self.seen[-1].content)

    def client(self, for_s: float | None = None) -> Client:
        """Client of a service that gives these answers."""
        client = Client("http://lab:1", "mpt_a_b", on_outage=lambda told: None, for_s=for_s)
        inner = client._http
        client._http = httpx.Client(transport=httpx.MockTransport(self), headers=inner.headers,
                                    base_url=inner.base_url, timeout=inner.timeout)  # fmt: skip
        inner.close()
        return client
