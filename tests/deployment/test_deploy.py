"""Tests of the files in deploy/: units, the proxy, alerts and the dashboard."""

import configparser
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import promql_parser as promql
import pytest
import typer
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from docs.reference import pages
from mptlab import serve
from mptlab.cli import app
from service.app import create_app
from service.db.engine import Database
from service.experiments.models import Queue
from service.queue import lease, workers
from service.queue.workers import Vitals
from service.settings import SECRETS, Settings
from service.vocabulary import Status
from tests.deployment.test_compose import PATH
from tests.support.attempts import claimed
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
VARIABLES = set(re.findall(r"`((?:MPT|HF)_\w+)`", pages()["settings.md"])) | {
    f"MPT_{name}_FILE".upper() for name in SECRETS
}


class Unit(dict[str, list[str]]):
    """The lines of its section [Service], by their names."""

    def __init__(self, file: Path):
        for line in file.read_text().split("[Service]")[1].splitlines():
            name, found, value = line.partition("=")
            if found:
                self.setdefault(name, []).append(value)


def name_of(file: Path) -> str:
    return file.name


def test_every_part_has_a_unit() -> None:
    started = {Unit(file)["ExecStart"][0].split(maxsplit=1)[1] for file in UNITS}
    assert started == {"migrate", "api --port 8765", "controller", "worker cpu",
                       "worker gpu", "backup /backup/mptlab"}  # fmt: skip


@pytest.mark.parametrize("file", UNITS, ids=name_of)
def test_a_unit_starts_an_existing_command(file: Path) -> None:
    (line,) = Unit(file)["ExecStart"]
    program, name, *arguments = line.split()
    assert program == "/opt/mptlab/bin/mpt"
    command = typer.main.get_group(app).commands[name]
    command.make_context(name, arguments)  # it parses them


@pytest.mark.parametrize("file", UNITS, ids=name_of)
def test_a_unit_names_existing_settings(file: Path) -> None:
    unit = Unit(file)
    given = dict(one.split("=", 1) for one in unit["Environment"])
    assert {name for name in given if name != "CUDA_VISIBLE_DEVICES"} <= VARIABLES
    handed = [one.split(":")[0] for one in unit["LoadCredential"]]
    assert [given[f"MPT_{one}_FILE".upper().replace("-", "_")] for one in handed] == [
        f"%d/{one}" for one in handed
    ]
    assert not any(name in file.read_text() for name in ("PASSWORD=", "REDIS_URL="))


def test_the_environment_names_existing_settings() -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string("[all]\n" + (DEPLOY / "systemd" / "environment").read_text())
    given = dict(parser["all"])
    assert set(given) <= VARIABLES
    assert "password" not in str(given)


@pytest.mark.parametrize("file", UNITS, ids=name_of)
def test_hardened_units_start(file: Path) -> None:
    unit = Unit(file)
    for name, value in {
        "User": "mptlab", "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "UMask": "0077",
        "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes",
    }.items():  # fmt: skip
        assert unit[name] == [value], name
    if unit.get("Type") != ["oneshot"]:
        assert unit["Restart"] == ["always"]
    if "worker" in file.name:  # MPT_KILL_GRACE_S, and the time to report the end
        assert float(unit["TimeoutStopSec"][0]) >= 3 * Settings.model_fields["kill_grace_s"].default
        assert unit["KillMode"] == ["mixed"]  # the worker signals its runner


def program(name: str) -> str:
    found = shutil.which(name, path=PATH)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_systemd_verifies_the_units(tmp_path: Path) -> None:
    """Ignore the path of the command, which is not installed on the test machine."""
    analyze = program("systemd-analyze")
    for file in UNITS:
        text = file.read_text().replace("/opt/mptlab/bin/mpt", shutil.which("true") or "")
        (tmp_path / file.name).write_text(text)
    shutil.copy(DEPLOY / "systemd" / "mptlab-backup.timer", tmp_path)
    names = sorted(str(file) for file in tmp_path.glob("mptlab-*"))
    done = subprocess.run([analyze, "verify", "--man=no", *names], capture_output=True, text=True)
    about_ours = [line for line in done.stderr.splitlines() if "mptlab" in line]
    assert (about_ours, done.returncode) == ([], 0)


@pytest.fixture
def proxy(settings: Settings, tmp_path: Path) -> Iterator[tuple[str, ssl.SSLContext]]:
    """The API behind the Caddyfile, on loopback: its address and an SSL context that trusts its
    certificate."""
    caddy = program("caddy")
    lab, port = Lab(settings, tmp_path / "log"), serve.free_port()
    options = f"{{\nskip_install_trust\nadmin off\nhttp_port {serve.free_port()}\n"
    caddyfile = (DEPLOY / "Caddyfile").read_text()
    assert caddyfile.count("\n{\n") == 1
    (tmp_path / "Caddyfile").write_text(caddyfile.replace("{\n", options, 1))
    environment = {
        **os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path),
        "MPT_SITE": f"https://localhost:{port}", "MPT_UPSTREAM": f"127.0.0.1:{lab.port}",
    }  # fmt: skip
    root = tmp_path / "caddy/pki/authorities/local/root.crt"
    lab.start("api", "api", "--port", str(lab.port))
    with (
        open(tmp_path / "caddy.log", "wb") as log,
        subprocess.Popen(
            [caddy, "run", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"],
            env=environment, stdout=log, stderr=log,
        ) as process,
    ):  # fmt: skip
        try:
            wait_until(root.exists, what="the proxy's certificate")
            url, trusted = f"https://localhost:{port}", ssl.create_default_context(cafile=str(root))
            wait_until(lambda: answers(url, trusted), what="the API behind the proxy")
            yield url, trusted
        finally:
            process.terminate()
            lab.stop()


def answers(url: str, trusted: ssl.SSLContext) -> bool:
    try:
        return httpx.get(f"{url}/readyz", verify=trusted).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_the_proxy_speaks_tls(
    proxy: tuple[str, ssl.SSLContext], settings: Settings, tmp_path: Path
) -> None:
    """Submit and upload through the proxy; its log contains no key."""
    url, trusted = proxy
    key = settings.key_file.read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, verify=trusted, headers=headers, timeout=60) as client:
        answer = client.post("/v1/experiments", json={"spec": ppca_spec()})
        assert answer.status_code == 202
        assert "max-age" in answer.headers["Strict-Transport-Security"]
        rows = b"0.1,0.2\n0.3,0.5\n" * 100_000
        sent = client.post("/v1/datasets", params={"name": "rows.csv"}, content=rows)
        assert sent.status_code == 201, sent.text
    said = (tmp_path / "caddy.log").read_text()
    assert "/v1/datasets" in said
    assert key not in said


MEGABYTE = b"0.1,0.2,0.3,0.4\n" * 2**16


def slowly(megabytes: int) -> Iterator[bytes]:
    """Two megabytes a second."""
    for _ in range(megabytes):
        yield MEGABYTE
        time.sleep(0.5)


@pytest.mark.slow
def test_a_long_upload_passes_the_proxy_and_one_that_stalls_does_not(
    proxy: tuple[str, ssl.SSLContext], settings: Settings
) -> None:
    url, trusted = proxy
    headers = {"Authorization": f"Bearer {settings.key_file.read_text().strip()}"}
    with httpx.Client(base_url=url, verify=trusted, headers=headers, timeout=120) as client:
        upload = partial(client.post, "/v1/datasets")

        def stalling() -> Iterator[bytes]:
            yield MEGABYTE[:1000]
            time.sleep(60)

        with ThreadPoolExecutor() as threads:
            second = threads.submit(upload, params={"name": "b.csv"}, content=stalling())
            arrived = upload(params={"name": "a.csv"}, content=slowly(200))
            stalled = second.result()
        assert (stalled.status_code, stalled.json()["reason"]) == (408, "upload_stalled")
        assert arrived.status_code in (201, 422), arrived.text  # 422: too many numbers
        assert arrived.json().get("bytes", 200 * len(MEGABYTE)) == 200 * len(MEGABYTE)


@pytest.mark.slow
def test_the_proxy_ends_what_the_api_does_not(proxy: tuple[str, ssl.SSLContext]) -> None:
    """A large head, and one that does not arrive."""
    url, trusted = proxy
    port = httpx.URL(url).port
    large = httpx.get(f"{url}/readyz", headers={"X-Large": "x" * 2**17}, verify=trusted)
    assert large.status_code == 431
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as raw,
        trusted.wrap_socket(raw, server_hostname="localhost") as slow,
    ):
        slow.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n")
        assert b"200" not in slow.recv(1000)


def alerts() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]:
        yield from group["rules"]


def expressions() -> Iterator[tuple[str, str]]:
    """All queries to Prometheus, with the alert or the panel that contains them."""
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def selectors(node: Any) -> Iterator[Any]:
    """Every metric that an expression selects, with its labels."""
    if isinstance(node, promql.VectorSelector):
        yield node
    for name in ("lhs", "rhs", "expr", "args", "selector", "vector_selector"):
        part = getattr(node, name, None)
        for one in part if isinstance(part, list) else [part]:
            if isinstance(one, promql.Expr):
                yield from selectors(one)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, prepared_store: Path) -> dict[str, set[str]]:
    """The labels of each sample that /metrics gives, after a failure and while a run has a GPU."""
    store = shutil.copytree(prepared_store, tmp_path_factory.mktemp("metrics") / "store")
    settings = Settings(store=store, database_url=None)
    app = create_app(settings)
    database: Database = app.state.database
    failed, running = claimed(database), claimed(database)
    with database.transaction() as session:
        lease.finish(session, failed, Status.FAILED, lease.FailureCause("error", "why"))
        workers.beat(session, "w", Vitals("host", Queue.GPU, 1, gpu_memory_ours=10**9))
    headers = {"Authorization": f"Bearer {settings.key_file.read_text().strip()}"}
    with TestClient(app, headers=headers) as client:
        assert client.get(f"/v1/experiments/{running.experiment_id}").status_code == 200
        text = client.get("/metrics").text
    found: dict[str, set[str]] = {"up": {"job"}}  # Prometheus's own
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize(("name", "expression"), list(expressions()))
def test_dashboard_queries_match_exported_metrics(
    name: str, expression: str, given: dict[str, set[str]]
) -> None:
    found = list(selectors(promql.parse(expression)))
    assert len(found) == len(re.findall(r"\b(?:mpt_\w+|up)\b", expression))
    for selector in found:
        assert selector.name in given
        assert {one.name for one in selector.matchers.matchers} <= given[selector.name]


def test_every_metric_is_used(given: dict[str, set[str]]) -> None:
    """A panel or an alert uses each metric."""
    asked = " ".join(expression for _, expression in expressions())
    for name in given.keys() - {"up"}:
        family = re.sub("_(bucket|count|sum|created|total)$", "", name)
        assert re.search(rf"\b{family}(_(bucket|count|sum|total))?\b", asked), name


def test_alerts_have_a_summary_and_a_severity() -> None:
    operations = (DEPLOY.parent / "docs" / "operations.md").read_text()
    for rule in alerts():
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert f"`{rule['alert']}`" in operations
    assert set(re.findall(r"`(Mpt\w+)`", operations)) == {rule["alert"] for rule in alerts()}


ALERT_TESTS = Path(__file__).with_name("alerts_test.yml")


@pytest.mark.slow
def test_alerts_fire_only_where_something_is_wrong() -> None:
    """In labs that are dead, partly dead, busy, idle, and without workers at night."""
    promtool = program("promtool")
    done = subprocess.run(
        [promtool, "test", "rules", str(ALERT_TESTS)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_in_a_test() -> None:
    fired = set(re.findall(r'alertname="(\w+)"', ALERT_TESTS.read_text()))
    assert fired == {rule["alert"] for rule in alerts()}
