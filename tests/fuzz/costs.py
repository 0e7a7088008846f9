"""Expensive requests, and their cost until they are refused: CPU seconds of the API process, the
longest wait of another request at the same time, and the size of the answer."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import psutil

from tests.fuzz.mutations import Request
from tests.support.ppca_spec import ppca_spec

MAX_CPU_S = 1.0
"""Maximum CPU time of one refused request."""
MAX_ANSWER_BYTES = 256 * 1024
TIMES = 3
HEAD_BYTES = 30_000
"""Slightly less than the limit of a request's head."""
BODY_BYTES = 4 * 2**20 - 1000
"""Slightly less than the size limit of a body."""
ITEMS = 190_000
"""Slightly less than the limit of items in a body."""
JSON = (b"Content-Type", b"application/json")


@dataclass(frozen=True)
class Kind:
    """A costly request: `refused` are the statuses that refuse it."""

    method: str
    target: str
    body: Callable[[], bytes] = bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    has_key: bool = True
    refused: tuple[int, ...] = (422,)

    def request(self, key: str) -> Request:
        headers = [(b"Host", b"127.0.0.1"), *self.headers]
        if self.has_key:
            headers.append((b"Authorization", b"Bearer " + key.encode()))
        body = self.body()
        if body:
            headers.append(JSON)
        return Request(self.method, self.target.encode(), tuple(headers), body)


def _many(item: bytes, count: int) -> bytes:
    return b"[" + b",".join([item] * count) + b"]"


def _full(item: bytes) -> bytes:
    return _many(item, BODY_BYTES // (len(item) + 1))


def _sweep(**what: object) -> bytes:
    return json.dumps({"spec": ppca_spec(), **what}).encode()


def _points(count: int, keys: int, name: str) -> bytes:
    """Points whose paths all differ from each other."""
    points = [{name.format(i * keys + j): 1 for j in range(keys)} for i in range(count)]
    return _sweep(list=points)


def _experiments(count: int, keys: int) -> bytes:
    one = {"spec": ppca_spec(), **{f"prioritx{i}": 1 for i in range(keys)}}
    return json.dumps({"experiments": [one] * count}).encode()


def _parameters(count: int) -> str:
    return "&".join(f"a{i}=1" for i in range(count))


def _large(name: bytes, piece: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return ((name, piece * (HEAD_BYTES // len(piece))),)


SWEEPS, BATCH, LIST = "/v1/sweeps", "/v1/experiments:batch", "/v1/experiments"
BODIES: dict[str, Callable[[], bytes]] = {
    "4 MB of ones": lambda: _full(b"1"),
    "4 MB of NaN": lambda: _full(b"NaN"),
    "4 MB of brackets": lambda: b"[" * BODY_BYTES,
    "4 MB of text": lambda: b'{"spec": {"a": "' + b"\xc3\xa9" * (BODY_BYTES // 2 - 50) + b'"}}',
    "as many ones as allowed": lambda: _many(b"1", ITEMS),
    "as many NaN as allowed": lambda: _many(b"NaN", ITEMS),
    "as many objects as allowed": lambda: _many(b"{}", ITEMS // 2),
    "deep lists": lambda: b"[" * ITEMS,
    "deep objects": lambda: b'{"a":' * ITEMS,
    "many keys": lambda: json.dumps({f"a{i}": 1 for i in range(ITEMS)}).encode(),
}
KINDS: dict[str, Kind] = {
    **{f"{name}, without a key": Kind("POST", SWEEPS, body, has_key=False, refused=(401,))
       for name, body in BODIES.items()},
    **{name: Kind("POST", SWEEPS, body) for name, body in BODIES.items()},
    "4 MB to sign in": Kind("POST", "/v1/sign-in", BODIES["4 MB of NaN"], has_key=False,
                            refused=(403,)),
    "4 MB to sign in, from an own page": Kind(
        "POST", "/v1/sign-in", BODIES["4 MB of NaN"], has_key=False, refused=(413,),
        headers=((b"Sec-Fetch-Site", b"same-origin"),)),
    "1,000 wrong experiments": Kind("POST", BATCH, lambda: _experiments(1000, 150)),
    "150,000 values for experiments": Kind(
        "POST", BATCH, lambda: b'{"experiments": ' + _many(b"1", 150_000) + b"}"),
    "wrong fields of a submission": Kind(
        "POST", LIST, lambda: json.dumps({f"nam{i}": 1 for i in range(250)}).encode()),
    "wrong paths of points": Kind("POST", SWEEPS, lambda: _points(9000, 15, "A{}")),
    "10,000 points of distinct paths": Kind(
        "POST", SWEEPS, lambda: _points(10_000, 10, "model.a{}")),
    "4,000 points of distinct paths": Kind("POST", SWEEPS, lambda: _points(4000, 1, "a{}")),
    "10,000 wrong points": Kind(
        "POST", SWEEPS, lambda: _sweep(grid={"model.latent_dim": ["x"] * 10_000})),
    "a spec of 150,000 seeds": Kind(
        "POST", SWEEPS, lambda: json.dumps(
            {"spec": ppca_spec(seeds=["x"] * 150_000), "grid": {"data.seed": [1]}}).encode()),
    "7,000 parameters": Kind("GET", f"{LIST}?{_parameters(3500)}"),
    "7,000 parameters, without a key": Kind(
        "GET", f"/healthz?{_parameters(3500)}", has_key=False),
    "200 parameters": Kind("GET", f"{LIST}?{_parameters(200)}"),
    "a filter of brackets": Kind("GET", f"{LIST}?filter={'(' * 2000}"),
    "a filter of nots": Kind("GET", f"{LIST}?filter={'not+' * 490}name=a"),
    "an unknown path": Kind("GET", "/v1/experimentx", has_key=False, refused=(404,)),
    "a long path": Kind("GET", "/" + "a/" * (HEAD_BYTES // 2), has_key=False, refused=(404,)),
    "a wrong method": Kind("PUT", f"{LIST}/a", has_key=False, refused=(405,)),
    "cookies": Kind("GET", LIST, headers=_large(b"Cookie", b"a=1;"), has_key=False,
                    refused=(401,)),
    "a quoted cookie": Kind("GET", LIST, headers=((b"Cookie", b'a="' + b"\\101" * 7000 + b'"'),),
                            has_key=False, refused=(401,)),
    "a large key": Kind("GET", LIST, headers=_large(b"Authorization", b"Bearer mpt_"),
                        has_key=False, refused=(401,)),
    "what is accepted": Kind("GET", "/v1/events", headers=_large(b"Accept", b"a/b;q=1,"),
                             refused=(406,)),
    "known tags": Kind("GET", f"{LIST}/a", headers=_large(b"If-None-Match", b'"a",'),
                       refused=(404,)),
}  # fmt: skip


@dataclass
class Cost:
    """Cost of one kind: means and maxima of TIMES requests."""

    name: str
    statuses: set[int | None]
    answer_bytes: int
    cpu_s: float
    waited_s: float

    @property
    def line(self) -> str:
        statuses = "/".join(map(str, sorted(self.statuses, key=str)))
        return (
            f"{self.name:44} {statuses:>8} {1000 * self.cpu_s:8.0f} {1000 * self.waited_s:8.0f}"
            f" {self.answer_bytes:8}"
        )


TITLE = f"{'refused request':44} {'status':>8} {'CPU ms':>8} {'waits ms':>8} {'bytes':>8}"


@contextmanager
def waits(port: int) -> Iterator[Callable[[], float]]:
    """The longest that /healthz took since the last call."""
    longest, ended = [0.0], threading.Event()

    def probe() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            while not ended.wait(0.02):
                began = time.perf_counter()
                client.get("/healthz")
                longest[0] = max(longest[0], time.perf_counter() - began)

    def since() -> float:
        found, longest[0] = longest[0], 0.0
        return found

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield since
    finally:
        ended.set()
        thread.join()


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
