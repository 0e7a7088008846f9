"""`mpt serve` in a terminal."""

import importlib.util
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import AnyStr, ClassVar, Generic

import httpx
import psutil
import pytest
import torch
from typer.testing import CliRunner

from mptlab import Client, serve
from mptlab.cli import app
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import MPT, wait_until

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.slow
def test_the_terminal_shows_only_the_outcome_of_runs(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    port = serve.free_port()
    environment = {**os.environ, "MPT_STORE": str(tmp_path / "store")}
    process = psutil.Popen(
        [*MPT, "serve", "--port", str(port), "--workers", "2"], env=environment,
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = bytearray()

    def read() -> None:
        try:
            while content := os.read(ours, 10_000):
                shown.extend(content)
        except OSError:
            pass  # the last process has closed the other end

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: b"serving" in shown, what="the service")
    wait_until(lambda: b"within ten minutes" in shown, what="the link")
    url = f"http://127.0.0.1:{port}"
    (code,) = re.findall(rf"open {url}/sign-in#(\S+) in a browser", shown.decode())
    page = {"Sec-Fetch-Site": "same-origin"}
    answer = httpx.post(f"{url}/v1/sign-in", json={"code": code}, headers=page)
    assert httpx.get(f"{url}/v1/me", cookies=answer.cookies).json()["name"] == "local"
    key = serve.store_key(tmp_path / "store")
    with Client(url, key) as client:
        submitted = client.submit(ppca_spec())["id"]
        assert client.wait(submitted, timeout_s=60)["status"] == "succeeded"
        wait_until(lambda: len(client.workers()) == 2, what="the second worker")
    process.send_signal(signal.SIGTERM)
    process.wait()
    reader.join()
    os.close(ours)
    lines = ESCAPES.sub("", shown.decode()).splitlines()
    assert any(submitted in line and "begins" in line for line in lines), lines
    assert any(submitted in line and "succeeded" in line for line in lines), lines
    assert len(lines) < 10, lines
    assert not [line for line in lines if "{" in line or "GET" in line], lines


@pytest.mark.parametrize(("processors", "workers"), [(1, 1), (3, 1), (4, 2), (64, 4)])
def test_a_worker_for_each_two_processors_up_to_four(
    processors: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    assert serve.usual_workers() == workers


def test_the_client_distribution_cannot_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="install mptlab-server"):
        serve.become("service")
    with pytest.raises(RuntimeError, match="install mptlab-server"), serve.embedded(tmp_path, 1):
        pass


def test_a_command_replaces_itself_with_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda *given: became.append(given))
    serve.become("service", "--port", "1")
    assert became == [(sys.executable, [sys.executable, "-m", "service", "--port", "1"])]


def test_a_used_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refusal = f"port {port} is in use: choose another port"
        with pytest.raises(RuntimeError, match=refusal), serve.embedded(tmp_path, port):
            pass


class Started(Generic[AnyStr]):
    """A process that was not started."""

    commands: ClassVar[list[tuple[str, ...]]] = []
    environments: ClassVar[list[dict[str, str]]] = []

    def __init__(self, command: list[str], env: dict[str, str], **_: object):
        self.commands.append(tuple(command[2:]))
        self.environments.append(env)

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def terminate(self) -> None: ...


@pytest.mark.parametrize("with_gpus", [True, False])
def test_gpus_have_workers_beside_those_of_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_gpus: bool
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(Started, "commands", [])
    monkeypatch.setattr(Started, "environments", [])
    with serve.embedded(tmp_path, serve.free_port(), workers=2, with_gpus=with_gpus):
        pass
    assert Started.commands[2:4] == [("worker", "cpu", "--local")] * 2
    assert Started.commands[4:] == [("worker.every_gpu", "--local")] * with_gpus
    device = "gpu" if with_gpus else "cpu"
    assert {one["MPT_EMBEDDED"] for one in Started.environments} == {device}


@pytest.mark.parametrize(
    ("flags", "has_gpu", "used"),
    [([], True, True), ([], False, False), (["--device", "cpu"], True, False)],
)
def test_gpus_are_used_unless_the_user_says_cpu(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], has_gpu: bool, used: bool
) -> None:
    calls: list[bool] = []

    def embedded(*_: object, with_gpus: bool, **__: object) -> None:
        calls.append(with_gpus)
        raise RuntimeError("seen enough")

    monkeypatch.setattr(serve, "has_gpu", lambda: has_gpu)
    monkeypatch.setattr(serve, "embedded", embedded)
    CliRunner().invoke(app, ["serve", *flags])
    assert calls == [used]


def test_a_machine_without_a_gpu_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert not serve.has_gpu()
    assert capfd.readouterr() == ("", "")


def test_waiting_for_a_service_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [False, False, True]
    serve.wait_until(lambda: answers.pop(0))
    monkeypatch.setattr(serve, "START_TIMEOUT_S", 0.1)
    with pytest.raises(TimeoutError, match="does not answer"):
        serve.wait_until(lambda: False)


def test_a_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "STOP_TIMEOUT_S", 0.2)
    deaf = "trap '' TERM; echo deaf; while true; do sleep 0.1; done"
    process = subprocess.Popen(["sh", "-c", deaf], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"deaf\n"
        serve._stop([process])
        assert process.returncode == -signal.SIGKILL


def test_a_store_is_served_once(tmp_path: Path) -> None:
    """A second service on it is refused and names the first; a killed one leaves it free."""
    store = tmp_path / "store"
    held = (
        "from mptlab.serve import _locked; from pathlib import Path; import sys\n"
        "with _locked(Path(sys.argv[1]), sys.argv[2]): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", held, str(store), "http://127.0.0.1:1234"]
    with psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        refused = rf"already served at http://127.0.0.1:1234 \(process {first.pid}\).*{store}"
        with pytest.raises(RuntimeError, match=refused), serve.embedded(store, serve.free_port()):
            pass
        assert not (store / "mpt.db").exists()
        first.kill()
        first.wait()
    assert store.stat().st_mode & 0o777 == 0o700
    with serve._locked(store, "http://127.0.0.1:2"):
        pass
