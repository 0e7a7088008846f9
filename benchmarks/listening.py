"""Cost of open and idle event streams for other requests: a claim of `benchmarks.service`."""

import selectors
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from itertools import cycle

import httpx
import psutil
from sqlalchemy import update

from benchmarks.figures import Figure
from service.db.engine import Database
from service.events.poller import MAX_USER_STREAMS
from service.experiments.models import Experiment
from service.settings import Settings
from service.vocabulary import Visibility
from tests.support.attempts import submitted
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab

OPEN = 300
POINTS = 1_000
ENDS = 50
LOOKS = 2_000
IDLE_S = 5.0


def streams(settings: Settings) -> Iterator[Figure]:
    """Latency of one experiment's status for one client, and CPU use of the idle API process:
    without a stream, with 300 open streams of different experiments, and with 300 of a sweep with
    1,000 points, of 15 users. Then CPU use while 50 of its points are cancelled, ten in a
    second."""
    with closing(Database(settings.url)) as database:
        ids = [submitted(database) for _ in range(OPEN)]
        with database.transaction() as session:
            session.execute(update(Experiment).values(visibility=Visibility.LAB))
    key = settings.key_file.read_text().strip()
    lab = Lab(settings, settings.store / "log")
    more = {"MPT_RATE_PER_USER": "1000000", "MPT_SHARE__MAX_SUBMITTED": "20000"}
    process = lab.start("api", "api", "--port", str(lab.port), **more)
    try:
        lab.client()
        keys = add_users(lab.port, key, OPEN // MAX_USER_STREAMS)
        yield from _figures(process, lab.port, key, ids[0], "none open")
        with ExitStack() as stack:
            for experiment_id, reader in zip(ids, cycle(keys), strict=False):
                path = f"/v1/experiments/{experiment_id}/events"
                stack.enter_context(_opened(lab.port, reader, path))
            yield from _figures(process, lab.port, key, ids[0], f"{OPEN} open", 100)
        yield from _of_sweep(process, lab.port, key, keys, ids[0])
    finally:
        lab.stop()


def add_users(port: int, key: str, count: int) -> list[str]:
    """Add users, and return a key of each."""
    url, headers = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {key}"}
    keys = []
    with httpx.Client(base_url=url, headers=headers, timeout=60) as admin:
        for i in range(count):
            admin.post("/v1/users", json={"name": f"user{i}"}).raise_for_status()
            made = admin.post(f"/v1/users/user{i}/keys", json={}).raise_for_status()
            keys.append(made.json()["key"])
    return keys


def _of_sweep(
    process: psutil.Process, port: int, key: str, readers: Sequence[str], experiment_id: str
) -> Iterator[Figure]:
    url, headers = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=300) as api, ExitStack() as stack:
        body = {"spec": ppca_spec(), "grid": {"seeds": [[seed] for seed in range(POINTS)]}}
        sweep = (
            api.post("/v1/sweeps", json={**body, "cache": False, "visibility": "lab"})
            .raise_for_status()
            .json()
        )
        path = f"{sweep['urls']['events']}?kind=status"
        before = _cpu_s(process)
        each = OPEN // len(readers)
        opened = [stack.enter_context(_opened(port, one, path)) for one in [*readers] * each]
        stopping = threading.Event()
        reading = threading.Thread(target=_read_all, args=[opened, stopping])
        reading.start()
        stack.callback(reading.join)
        stack.callback(stopping.set)
        time.sleep(IDLE_S)
        yield Figure(f"CPU to open {OPEN} of a sweep", _cpu_s(process) - before, "s")
        how = f"{OPEN} open of a sweep"
        yield from _figures(process, port, key, experiment_id, how, 100)
        rows = api.get(f"/v1/sweeps/{sweep['id']}/table").raise_for_status().json()["items"]
        before = _cpu_s(process)
        for row in rows[:ENDS]:
            cancel = f"/v1/experiments/{row['experiment_id']}:cancel"
            api.post(cancel).raise_for_status()
            time.sleep(0.1)
        yield Figure(f"CPU while {ENDS} points end, {how}", _cpu_s(process) - before, "s")


def _read_all(connections: list[socket.socket], stopping: threading.Event) -> None:
    """Read what the streams send, and forget it."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        while not stopping.is_set():
            for ready, _ in selector.select(0.1):
                ready.fileobj.recv(1 << 20)  # type: ignore[union-attr]


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


def _opened(port: int, key: str, path: str) -> socket.socket:
    """A stream whose first event has come."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = f"Host: x\r\nAuthorization: Bearer {key}\r\nAccept: text/event-stream"
    connection.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n\r\n".encode())
    received = b""
    while b"event: status" not in received:
        received += connection.recv(4096)
        assert received.startswith(b"HTTP/1.1 200"), received
    return connection
