"""`mpt serve` as a person sees it at a terminal."""

import os
import pty
import re
import signal
import threading
from pathlib import Path

import httpx
import psutil

from mptlab import Client, serve
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import MPT, wait_until

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def test_a_person_sees_what_becomes_of_runs_and_nothing_else(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    port = serve.free_port()
    environment = {**os.environ, "MPT_STORE": str(tmp_path / "store")}
    process = psutil.Popen(
        [*MPT, "serve", "--port", str(port)], env=environment,
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
    process.send_signal(signal.SIGTERM)
    process.wait()
    reader.join()
    os.close(ours)
    lines = ESCAPES.sub("", shown.decode()).splitlines()
    assert any(submitted in line and "begins" in line for line in lines), lines
    assert any(submitted in line and "succeeded" in line for line in lines), lines
    assert len(lines) < 10, lines
    assert not [line for line in lines if "{" in line or "GET" in line], lines
