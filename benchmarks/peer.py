"""The same work by `mlflow server`, side by side in one run: a claim of `benchmarks.service`.

MLflow is none of our packages: it is measured where the command `mlflow` is on the path, or where
MLFLOW names it, as `python -m venv peer && peer/bin/pip install mlflow` makes it.
"""

import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import httpx
import orjson
import psutil

from benchmarks import queries
from benchmarks.figures import Figure
from mptlab.serve import free_port
from service.settings import Settings
from tests.support.processes import wait_until

POINTS = 100_000
AT_ONCE = 1000
"""Points that MLflow takes by one request."""
STATUS_LOOKS = 300
WHOLE_LOOKS = 3
TO_START_S = 120.0


def peer(settings: Settings) -> Iterator[Figure]:
    """A curve of 100,000 points read whole and parsed (JSON by orjson), and the status of a run,
    from either server."""
    program = os.environ.get("MLFLOW") or shutil.which("mlflow")
    if settings.database_url is not None or program is None:
        return
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        began = time.perf_counter()
        with _mlflow(program, Path(folder)) as http:
            yield Figure("mlflow, start to ready", time.perf_counter() - began, "s")
            run_id, rate = _logged(http)
            yield Figure("mlflow, points taken", rate, "points/s")
            status = _sorted_ms(lambda: _get(http, "runs/get", run_id=run_id), STATUS_LOOKS)
            yield from _percentiles("mlflow, status", status)
            whole = statistics.median(_sorted_ms(lambda: _history(http, run_id), WHOLE_LOOKS))
            yield Figure("mlflow, 100,000 points", whole, "ms")
    for figure in queries.curves_of_one(settings, STATUS_LOOKS):
        yield figure
        if figure.name.endswith("json"):
            yield Figure("  mlflow's time over ours", whole / figure.value, "×", at_least=60)
        if figure.name.endswith("arrow"):
            yield Figure("  mlflow's time over ours", whole / figure.value, "×", at_least=300)


@contextmanager
def _mlflow(program: str, folder: Path) -> Iterator[HTTPConnection]:
    port = free_port()
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [program, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
             "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
             "--artifacts-destination", str(folder / "artifacts")],
            stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip
    try:
        wait_until(lambda: _answers(port), timeout_s=TO_START_S, what="mlflow server")
        with closing(HTTPConnection("127.0.0.1", port, timeout=300)) as http:
            yield http
    finally:
        for one in psutil.Process(server.pid).children(recursive=True):
            one.kill()
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").is_success
    except httpx.TransportError:
        return False


def _logged(http: HTTPConnection) -> tuple[str, float]:
    """A run with the points of one metric, and how many were taken a second."""
    made = _post(http, "runs/create", {"experiment_id": "0", "start_time": 0})
    run_id: str = made["run"]["info"]["run_id"]
    began = time.perf_counter()
    for first in range(0, POINTS, AT_ONCE):
        metrics = [
            {"key": "loss", "value": i / 7, "timestamp": i, "step": i}
            for i in range(first, first + AT_ONCE)
        ]
        _post(http, "runs/log-batch", {"run_id": run_id, "metrics": metrics})
    return run_id, POINTS / (time.perf_counter() - began)


def _history(http: HTTPConnection, run_id: str) -> None:
    token, count = "", 0
    while True:
        query = {"run_id": run_id, "metric_key": "loss", **({"page_token": token} if token else {})}
        page = _get(http, "metrics/get-history", **query)
        count += len(page["metrics"])
        token = page.get("next_page_token", "")
        if not token:
            break
    assert count == POINTS


def _post(http: HTTPConnection, path: str, body: Any) -> Any:
    headers = {"Content-Type": "application/json"}
    http.request("POST", f"/api/2.0/mlflow/{path}", json.dumps(body), headers)
    return _answer(http)


def _get(http: HTTPConnection, path: str, **query: str) -> Any:
    http.request("GET", f"/api/2.0/mlflow/{path}?{urlencode(query)}")
    return _answer(http)


def _answer(http: HTTPConnection) -> Any:
    response = http.getresponse()
    content = response.read()
    assert response.status == 200, content
    return orjson.loads(content)


def _sorted_ms(ask: Callable[[], object], times: int) -> list[float]:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        ask()
        took.append(1000 * (time.perf_counter() - began))
    return sorted(took)


def _percentiles(name: str, took: list[float]) -> Iterator[Figure]:
    yield Figure(f"{name} p50", took[len(took) // 2], "ms")
    yield Figure(f"{name} p99", took[int(0.99 * len(took))], "ms")
