"""Cost of open and idle event streams for other requests: a claim of `benchmarks.service`."""

import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection

import psutil

from benchmarks.figures import Figure
from service.db.engine import Database
from service.settings import Settings
from tests.support.attempts import submitted
from tests.support.processes import Lab

OPEN = 500
LOOKS = 2_000
IDLE_S = 5.0


def streams(settings: Settings) -> Iterator[Figure]:
    """Latency of one experiment's status for one client, and CPU use of the idle API process:
    without a stream, and with 500 open streams of different experiments."""
    with closing(Database(settings.url)) as database:
        ids = [submitted(database) for _ in range(OPEN)]
    key = settings.key_file.read_text().strip()
    lab = Lab(settings, settings.store / "log")
    more = {"MPT_MAX_USER_STREAMS": str(OPEN), "MPT_RATE_PER_USER": "1000000"}
    process = lab.start("api", "api", "--port", str(lab.port), **more)
    try:
        lab.client()
        yield from _figures(process, lab.port, key, ids[0], "none open")
        with ExitStack() as stack:
            for experiment_id in ids:
                stack.enter_context(_opened(lab.port, key, experiment_id))
            yield from _figures(process, lab.port, key, ids[0], f"{OPEN} open", 100)
    finally:
        lab.stop()


def _figures(
    process: psutil.Process, port: int, key: str, experiment_id: str, how: str,
    at_most: float | None = None,
) -> Iterator[Figure]:  # fmt: skip
    took = looks(port, key, experiment_id)
    before = _cpu_s(process)
    time.sleep(IDLE_S)
    idle = (_cpu_s(process) - before) / IDLE_S
    percent = statistics.quantiles(took, n=100, method="inclusive")
    yield Figure(f"status p50, {how}", percent[49], "ms")
    yield Figure(f"status p99, {how}", percent[98], "ms", at_most=at_most)
    yield Figure(f"CPU while no one asks, {how}", 100 * idle, "%")


def looks(port: int, key: str, experiment_id: str) -> list[float]:
    """Latencies in ms, after as many that warm up."""
    headers, path = {"Authorization": f"Bearer {key}"}, f"/v1/experiments/{experiment_id}"
    found = []
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as http:
        for _ in range(2 * LOOKS):
            began = time.perf_counter()
            http.request("GET", path, headers=headers)
            answer = http.getresponse()
            answer.read()
            found.append(1000 * (time.perf_counter() - began))
            assert answer.status == 200
    return found[LOOKS:]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _opened(port: int, key: str, experiment_id: str) -> socket.socket:
    """A stream whose first event has come."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    path = f"/v1/experiments/{experiment_id}/events"
    head = f"Host: x\r\nAuthorization: Bearer {key}\r\nAccept: text/event-stream"
    connection.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n\r\n".encode())
    received = b""
    while b"event: status" not in received:
        received += connection.recv(4096)
        assert received.startswith(b"HTTP/1.1 200"), received
    return connection
