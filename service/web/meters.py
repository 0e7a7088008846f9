"""Measurements of one API process's own requests, for Prometheus."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from service.timings import Timings

SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WAITED = (0.001, 0.01, 0.1, 1.0, 10.0)


class Meters:
    """The metrics of a process. Labels are route templates: no id, nothing that a client chose."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "mpt_http_request_seconds",
            "requests by route template and status, except streams and requests with Prefer: wait",
            ["method", "route", "status"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._threads = Histogram(
            "mpt_thread_wait_seconds",
            "time that requests waited for a thread",
            buckets=WAITED,
            registry=self.registry,
        )
        self._connections = Histogram(
            "mpt_database_pool_wait_seconds",
            "time that requests waited for a connection of the database's pool",
            buckets=WAITED,
            registry=self.registry,
        )
        self._database = Counter(
            "mpt_http_database_seconds",
            "time that requests waited for the database, by route template",
            ["route"],
            registry=self.registry,
        )
        self._lag = Gauge(
            "mpt_poller_lag_seconds",
            "since the last look for changes; 0 while nobody listens",
            registry=self.registry,
        )

    def observe(self, method: str, route: str, status: int, seconds: float, of: Timings) -> None:
        """Count a request that was answered."""
        self._requests.labels(method, route, str(status)).observe(seconds)
        self._threads.observe(of.thread)
        self._connections.observe(of.connection)
        self._database.labels(route).inc(of.database)

    def text(self, looked_at: float | None) -> bytes:
        """Return all metrics in Prometheus's text format. `looked_at` is when the poller last
        looked, on the monotonic clock; None while nobody listens."""
        self._lag.set(0.0 if looked_at is None else time.monotonic() - looked_at)
        return generate_latest(self.registry)
