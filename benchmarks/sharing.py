"""Latency of one user while others flood an API process: claims of `benchmarks.service`."""

import asyncio
import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from multiprocessing.synchronize import Event

import psutil

from benchmarks.figures import Figure, percentile
from benchmarks.listening import add_users
from service.db.engine import Database
from service.queue import lease
from service.records.recording import Batch, record
from service.settings import Settings
from service.vocabulary import Status
from tests.support.attempts import claimed
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab
from tests.support.records import point

KEYLESS, BODY_BYTES = 200, 4 * 2**20
STREAMING, STREAMS = 15, 20
LOOPING, REQUESTS = 10, 8
CREATES = 200
LOOKS = 60
LIMIT_MS = 300
BUNDLE_POINTS = 300_000
SUBMISSION = {"spec": ppca_spec(), "cache": False}


@dataclass(frozen=True)
class Request:
    """A request that a load sends again and again."""

    method: str
    path: str
    key: str
    body: str = ""

    def encoded(self, port: int, accept: str = "application/json") -> bytes:
        head = (
            f"{self.method} {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Authorization: Bearer {self.key}\r\nAccept: {accept}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(self.body)}\r\n\r\n"
        )
        return f"{head}{self.body}".encode()


def sharing(settings: Settings) -> Iterator[Figure]:
    """Measure what floods of requests cost a colleague, who sends one request after another."""
    with closing(Database(settings.url)) as database:
        ended = _store_ended(database)
    lab = Lab(settings, settings.store / "log")
    more = {"MPT_RATE_PER_USER": "1000000",
            "MPT_SHARE__MAX_SUBMITTED": "1000000"}  # fmt: skip
    process = lab.start("api", "api", "--port", str(lab.port), **more)
    try:
        lab.client()
        own = settings.key_file.read_text().strip()
        keys = add_users(lab.port, own, STREAMING + LOOPING + 1)
        yield from _keyless(process, lab.port)
        colleague, looping, streaming = keys[0], keys[1 : LOOPING + 1], keys[LOOPING + 1 :]
        yield from _figures(lab.port, colleague, "alone")
        listing = partial(Request, "GET", "/v1/experiments")
        creating = partial(Request, "POST", "/v1/experiments", body=_json(SUBMISSION))
        with load(lab.port, [creating(looping[0])] * CREATES):
            yield from _figures(lab.port, colleague, f"beside {CREATES} creates of one user")
        loops = [make(user) for make in (listing, creating) for user in looping]
        open_streams = [Request("GET", "/v1/events", user) for user in streaming] * STREAMS
        with load(lab.port, loops * (REQUESTS // 2), open_streams):
            how = f"beside {LOOPING} users × {REQUESTS}, {len(open_streams)} streams"
            yield from _figures(lab.port, colleague, how)
        bundle = Request("GET", f"/v1/experiments/{ended}/bundle", own)
        many = _json({"experiments": [{**SUBMISSION, "name": str(i)} for i in range(1000)]})
        batch = Request("POST", "/v1/experiments:batch", own, many)
        with load(lab.port, [bundle, bundle, batch, batch]):
            yield from _figures(lab.port, colleague, "beside bundles and batches of one user")
    finally:
        lab.stop()


def _store_ended(database: Database) -> str:
    """Store an ended experiment of the first user with many points."""
    claim = claimed(database)
    batch = Batch()
    for seq in range(1, BUNDLE_POINTS + 1):
        batch.add(point(seq))
    with database.transaction() as session:
        record(session, claim, batch, 1e6)
        lease.finish(session, claim, Status.SUCCEEDED)
    return claim.experiment_id


def _json(value: object) -> str:
    return json.dumps(value)


def _figures(port: int, key: str, how: str) -> Iterator[Figure]:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    requests = {
        "list": ("GET", "/v1/experiments", None),
        "submission": ("POST", "/v1/experiments", _json(SUBMISSION)),
        "readyz": ("GET", "/readyz", None),
    }
    times: dict[str, list[float]] = {name: [] for name in requests}
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as http:
        for _ in range(LOOKS):
            for name, (method, path, body) in requests.items():
                began = time.perf_counter()
                http.request(method, path, body, headers)
                answer = http.getresponse()
                answer.read()
                times[name].append(1000 * (time.perf_counter() - began))
                assert answer.status < 300, (name, answer.status)
    for name, took in times.items():
        yield Figure(f"{name} p95, {how}", percentile(took, 95), "ms", at_most=LIMIT_MS)


@contextmanager
def load(port: int, loops: Sequence[Request], streams: Sequence[Request] = ()) -> Iterator[None]:
    """Send requests in loops, each on a connection of its own, from another process."""
    stopping, started = multiprocessing.Event(), multiprocessing.Event()
    sender = multiprocessing.Process(target=_send, args=(port, loops, streams, started, stopping))
    sender.start()
    started.wait(60)
    time.sleep(1)
    try:
        yield
    finally:
        stopping.set()
        sender.join()
    assert sender.exitcode == 0


def _send(
    port: int, loops: Sequence[Request], streams: Sequence[Request], started: Event, stopping: Event
) -> None:
    async def send() -> None:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in streams]
        for request, (_, writer) in zip(streams, opened, strict=True):
            writer.write(request.encoded(port, "text/event-stream"))
        reading = [asyncio.create_task(_read_all(reader)) for reader, _ in opened]
        looping = [asyncio.create_task(_loop(port, request, stopping)) for request in loops]
        started.set()
        await asyncio.gather(*looping)
        for task in reading:
            task.cancel()

    asyncio.run(send())


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(2**20):
        pass


async def _loop(port: int, request: Request, stopping: Event) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    while not stopping.is_set():
        writer.write(request.encoded(port))
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if "content-length: " in head:
            await reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
        else:
            await _chunks(reader)
        if "connection: close" in head:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    writer.close()


async def _chunks(reader: asyncio.StreamReader) -> None:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        await reader.readexactly(size + 2)
    await reader.readexactly(2)


def _keyless(process: psutil.Process, port: int) -> Iterator[Figure]:
    """Measure the processor time of a request with a large body and no key."""
    before = _cpu_s(process)
    for _ in range(KEYLESS):
        http = HTTPConnection("127.0.0.1", port)
        try:
            http.request("POST", "/v1/sweeps", b" " * BODY_BYTES)
            assert http.getresponse().status == 401
        except (BrokenPipeError, ConnectionResetError):
            pass  # the service closed the connection before the body was sent
        http.close()
    cost = 1000 * (_cpu_s(process) - before) / KEYLESS
    yield Figure("CPU of 4 MB without a key", cost, "ms", at_most=5)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
