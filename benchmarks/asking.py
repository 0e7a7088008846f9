"""Duration of requests while others send requests too: claims of `benchmarks.service`."""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from urllib.parse import urlsplit

from benchmarks.figures import Figure, percentile
from benchmarks.modes import LONG, SMALL, running
from service.settings import Settings
from tests.support.processes import Lab

WARM_UP_S = 6.0
"""Until the worker's next spare has imported torch, and every thread has its connection."""
MEASURED_S = 15.0
FLAT_OUT_S = 5.0
POLLED_S = 600.0


@dataclass(frozen=True)
class Crowd:
    """Clients that submit, and read their experiments several times before they submit again."""

    clients: int
    period_s: float
    looks: int = 20


WAITING = Crowd(20, 0.2)
"""The rate at which `client.wait` polls."""
POLLING = Crowd(100, 1.0)
"""Five submissions a second, and a hundred looks."""


def requests(settings: Settings) -> Iterator[Figure]:
    """20 clients submit and look every 0.2 s, and then without a pause, while a worker computes."""
    with running(settings) as client:
        client.submit(LONG, priority=100, cache=False)
        _ask(client.url, settings, WAITING, WARM_UP_S)
        posts, gets = _ask(client.url, settings, WAITING, MEASURED_S)
        yield from _figures("POST", posts, at_most=50)
        yield from _figures("status", gets, at_most=20)
        posts, gets = _ask(client.url, settings, Crowd(WAITING.clients, 0), FLAT_OUT_S)
        yield Figure("flat out", (len(posts) + len(gets)) / FLAT_OUT_S, "1/s")
        yield Figure("flat out, status p99", percentile(gets, 99), "ms")


def polling(settings: Settings) -> Iterator[Figure]:
    """100 clients look once a second and submit 5 specs a second to an API process, for ten minutes
    in which the queue grows to 3,000, for nothing works; an answer that is an error ends the
    measurement."""
    lab = Lab(settings, settings.store / "log")
    lab.start("api", "api", "--port", str(lab.port))
    try:
        posts, gets = _ask(lab.client().url, settings, POLLING, POLLED_S)
    finally:
        lab.stop()
    yield Figure("submissions and looks", len(posts) + len(gets), "")
    yield from _figures("100 clients, POST", posts, at_most=250)
    yield from _figures("100 clients, status", gets, at_most=100)


def _figures(what: str, latencies: Sequence[float], at_most: float) -> Iterator[Figure]:
    yield Figure(f"{what} p50", percentile(latencies, 50), "ms")
    yield Figure(f"{what} p99", percentile(latencies, 99), "ms", at_most=at_most)


def _ask(
    url: str, settings: Settings, crowd: Crowd, seconds: float
) -> tuple[list[float], list[float]]:
    """The latencies in ms of all clients' submissions and looks, by the client of the standard
    library: httpx takes more of this machine's time for a look than the service does."""
    headers = {
        "Authorization": f"Bearer {settings.key_file.read_text().strip()}",
        "Content-Type": "application/json",
    }
    body = json.dumps({"spec": SMALL, "cache": False})
    posts: list[float] = []
    gets: list[float] = []
    stop_at = time.monotonic() + seconds

    def one(number: int) -> None:
        # Clients do not act at the same moments, like independent scripts.
        time.sleep(crowd.period_s * (crowd.looks + 1) * number / crowd.clients)
        with closing(HTTPConnection(urlsplit(url).netloc, timeout=60)) as http:
            http.connect()

            def ask(into: list[float], method: str, path: str, body: str | None = None) -> bytes:
                began = time.perf_counter()
                http.request(method, path, body, headers)
                response = http.getresponse()
                answer = response.read()
                into.append(1000 * (time.perf_counter() - began))
                assert response.status < 300, answer
                return answer

            while time.monotonic() < stop_at:
                made = json.loads(ask(posts, "POST", "/v1/experiments", body))
                for _ in range(crowd.looks):
                    time.sleep(crowd.period_s)
                    ask(gets, "GET", made["urls"]["self"])

    with ThreadPoolExecutor(crowd.clients) as pool:
        list(pool.map(one, range(crowd.clients)))
    return posts, gets
