"""Requests that are wrong in one or several ways, by a seeded generator."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.support.ppca_spec import ppca_spec
from tests.support.uploads import GOOD, npy

DEEP = 100_000
RAW = {
    "NaN": "NaN", "Infinity": "-Infinity", "overflow": "1e400", "digits": "9" * 5000,
    "NUL": r'"a\u0000b"', "surrogate": r'"\ud800"', "deep": "[" * DEEP + "]" * DEEP,
    "deep object": '{"a":' * DEEP + "1" + "}" * DEEP, "2^63": str(2**63),
    "2^31": str(2**31), "minus": "-1", "tiny": "5e-324", "huge": "1e308", "empty": '""',
    "long": '"' + "x" * 100_000 + '"', "list": "[]", "object": "{}", "null": "null", "true": "true",
    "fraction": "0.5", "emoji": '"\U0001f600\u202e"', "many": "[" + "1," * 50_000 + "1]",
}  # fmt: skip
"""JSON, or nearly, in place of a value."""
WORDS = ("-1", "0", "501", "1e9", str(2**63), str(2**64), "NaN", "", "٣", "%00", "%ff", "%ud800",
         "true", "null", "'--", "a" * 5000, "AA", "!!", "%0d%0aX:%201", "..%2f..", "\u202e",
         "1970-01-01", "inf", "9" * 400, "metrics.lml > -61 and status = succeeded", "tag != null",
         "metrics.lml{seed=4} desc", "spec.model.latent_dim in (1, '2', null)", "(" * 3000,
         "not " * 500 + "name = a", "spec." + "a." * 200 + "b >= 1e400", "text/csv", "arrow",
         "2026-13-01T25:61:00Z", "finished_at < 1970-01-01")  # fmt: skip
"""In a query or a path."""
METHODS = ("GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS", "TRACE", "PROPFIND")
TYPES = ("application/json", "text/plain", "application/x-www-form-urlencoded",
         "multipart/form-data", "application/json; charset=utf-16", "", "x" * 300)  # fmt: skip
HEADERS = ("Authorization", "Idempotency-Key", "X-Request-ID", "Accept", "Prefer", "If-None-Match",
           "If-Match", "Range", "Content-Encoding", "Cookie", "X-Forwarded-For", "Origin", "Host",
           "Accept-Encoding", "X-HTTP-Method-Override", "Last-Event-ID")  # fmt: skip
VALUES = (b"", b"\xff\xfe", b"x" * 8000, b"Bearer", b"Bearer mpt_", b"Bearer mpt_\xe9_x_y", b"-1",
          b"bytes=0-", b"bytes=99999999999999999999-1", b'"', b"wait=1e400", b"gzip", b"*/*;q=nan",
          b"::1, 2001:db8::1", b"%00", b"[", b"..", b"a" * 129)  # fmt: skip


@dataclass(frozen=True)
class Request:
    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    chunked: bool = False

    @property
    def wire(self) -> bytes:
        """Return the request in the form in which it is sent."""
        lines = [b"%s %s HTTP/1.1" % (self.method.encode(), self.target)]
        lines += [b"%s: %s" % pair for pair in self.headers]
        if self.chunked:
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in _parts(self.body))
            return b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", body + b"0\r\n\r\n"])
        length = b"Content-Length: %d" % len(self.body)
        return b"\r\n".join([*lines, length, b"", self.body])


def _parts(body: bytes, size: int = 65_536) -> Iterator[bytes]:
    return (body[i : i + size] for i in range(0, len(body), size))


@dataclass(frozen=True)
class Route:
    """A route of the OpenAPI document: its method, its path template, its parameter names."""

    method: str
    path: str
    queries: tuple[str, ...]


def routes(document: Mapping[str, Any]) -> list[Route]:
    """Every route, so that a new one is asked too."""
    return [
        Route(method.upper(), path, tuple(
            one["name"] for one in operation.get("parameters", []) if one["in"] == "query"))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]  # fmt: skip


SUBMISSION = {"spec": ppca_spec(), "name": "a", "tags": ["b"], "note": "c", "priority": 1}
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/experiments"): SUBMISSION,
    ("POST", "/v1/experiments:validate"): SUBMISSION,
    ("PATCH", "/v1/experiments/{experiment_id}"): {"name": "a", "tags": ["b"], "pinned": True},
    ("PATCH", "/v1/datasets/{dataset_id}"): {"visibility": "lab"},
    ("POST", "/v1/users"): {"name": "new", "role": "member"},
    ("PATCH", "/v1/users/{name}"): {
        "shares": 2,
        "max_running": 1,
        "max_gpu_hours_a_day": 1.5,
        "may_jump": False,
    },
    ("POST", "/v1/experiments:batch"): {"experiments": [SUBMISSION, SUBMISSION]},
    ("POST", "/v1/curves:batchGet"): {"ids": ["0" * 32], "series": ["score"], "max_points": 10},
    ("POST", "/v1/sweeps"): {
        "spec": ppca_spec(),
        "grid": {"model.latent_dim": [1, 2], "seeds": [[4], [44]]},
        "concurrency": 1,
    },
    ("POST", "/v1/sweeps/{sweep_id}/points"): {"list": [{"seeds": [5]}]},
    ("PATCH", "/v1/sweeps/{sweep_id}"): {"name": "a", "concurrency": 2, "priority": 1},
    ("POST", "/v1/users/{name}/keys"): {"name": "k", "scopes": ["read"], "days": 3},
}
UPLOADS = (
    b"1,2\n3,4\n",
    b"",
    b"\x93NUMPY\x01\x00\xff\xff",
    npy(GOOD)[:-9],
    b"PK\x03\x04",
    b"\0" * 99,
)
LOOKED_INTO = 0.01
"""Fraction of uploads that are inspected; each needs a process."""


@dataclass
class Generator:
    """Generator of requests to `routes` with the keys of `roles`, for objects with these ids."""

    random: random.Random
    routes: list[Route]
    keys: dict[str, str]
    known: dict[str, list[str]]

    def request(self) -> Request:
        route = self.random.choice(self.routes)
        headers = {"Host": b"127.0.0.1", "Authorization": b"Bearer " + self._key()}
        path, query, body = self._path(route), self._query(route), b""
        if route.path == "/v1/datasets" and route.method == "POST":
            looked_into = self.random.random() < LOOKED_INTO
            query = {"name": "a.csv" if looked_into else self._word()}
            body = self.random.choice(UPLOADS)
        elif (valid := BODIES.get((route.method, route.path))) is not None:
            headers["Content-Type"] = b"application/json"
            body = self._body(valid)
        method = route.method
        if self._seldom():
            method = self.random.choice(METHODS)
        if self._seldom():
            headers["Content-Type"] = self.random.choice(TYPES).encode()
        for _ in range(3):
            if self._seldom():
                headers[self.random.choice(HEADERS)] = self.random.choice(VALUES)
        text = "&".join(f"{name}={value}" for name, value in query.items())
        target = path + (f"?{text}" if text else "")
        pairs = tuple((name.encode(), value) for name, value in headers.items())
        return Request(method, quote(target, safe="/:?&=%{}").encode(), pairs, body,
                       chunked=self._seldom())  # fmt: skip

    def _seldom(self) -> bool:
        return self.random.random() < 0.1

    def _key(self) -> bytes:
        return self.random.choice(list(self.keys.values())).encode()

    def _word(self) -> str:
        return self.random.choice(WORDS)

    def _path(self, route: Route) -> str:
        path = route.path
        for name, known in self.known.items():
            absurd = not known or self._seldom()
            path = path.replace(
                f"{{{name}}}", self._word() if absurd else self.random.choice(known)
            )
        return path

    def _query(self, route: Route) -> dict[str, str]:
        names = [name for name in route.queries if self.random.random() < 0.3]
        names += ["unknown"] if self._seldom() else []
        return {name: self._word() for name in names}

    def _body(self, valid: dict[str, Any]) -> bytes:
        text = json.dumps(valid).encode()
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 3))):
            text = self.random.choice(MUTATIONS)(text, self.random)
        return text


def _replaced(text: bytes, chance: random.Random) -> bytes:
    """Replace a value by one of a wrong type, or by an absurd one."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    places = list(_places(document))
    if not places:
        return text
    holder, key = chance.choice(places)
    holder[key] = "@@"
    return (
        json.dumps(document)
        .replace('"@@"', chance.choice(list(RAW.values())), 1)
        .encode("utf-8", "surrogatepass")
    )


def _places(part: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in list(part.items() if isinstance(part, dict) else enumerate(part)):
        yield part, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _twice(text: bytes, chance: random.Random) -> bytes:
    return text.replace(b"{", b'{"name": "a", "name": "b", ', 1)


def _flipped(text: bytes, chance: random.Random) -> bytes:
    changed = bytearray(text or b" ")
    changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def _cut(text: bytes, chance: random.Random) -> bytes:
    return text[: chance.randrange(len(text) + 1)]


def _unknown(text: bytes, chance: random.Random) -> bytes:
    name = chance.choice(('""', r'"\ud800"', r'"\u0000"', '"__proto__"', '"spec "', '"id"'))
    return text.replace(b"{", b"{" + f"{name}: {chance.choice(list(RAW.values()))}, ".encode(), 1)


def _encoded(text: bytes, chance: random.Random) -> bytes:
    codec = chance.choice(("utf-16", "utf-32", "utf-8-sig"))
    return text.decode("latin-1").encode(codec)


def _wrapped(text: bytes, chance: random.Random) -> bytes:
    return chance.choice((b"[%s]", b"%s %s" % (text[:0], b"%s}"), b'"%s"', b"\xff%s\x80")) % text


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _replaced, _replaced, _replaced, _twice, _flipped, _cut, _unknown, _encoded, _wrapped
)  # fmt: skip
