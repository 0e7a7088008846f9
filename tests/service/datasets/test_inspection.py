"""Inspection of uploads in a separate limited process that ends with the API."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mptcore.data.inspect import OPEN_FILES
from service.datasets import files
from service.refusals import ApiError
from tests.support.processes import wait_until

PARENT = """
import sys
from pathlib import Path
from service.datasets.files import inspect
inspect(Path(sys.argv[1]), "x.npy", 1000)
"""


@pytest.fixture
def inspection(tmp_path: Path) -> Iterator[tuple[psutil.Popen, psutil.Process]]:
    """A process that inspects as the API does, and the inspection, which waits for a pipe."""
    os.mkfifo(tmp_path / "x.npy")
    passwords = ("MPT_DATABASE_URL", "PGPASSWORD", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")
    secret = {**os.environ, **dict.fromkeys(passwords, "secret")}
    parent = psutil.Popen([sys.executable, "-c", PARENT, str(tmp_path / "x.npy")], env=secret)
    wait_until(lambda: any(_limited(child) for child in parent.children()))
    (child,) = parent.children()
    yield parent, child
    for process in (parent, child):
        if process.is_running():
            process.kill()
    parent.wait()


def _limited(process: psutil.Process) -> bool:
    return process.rlimit(psutil.RLIMIT_NOFILE)[0] == OPEN_FILES


def test_an_inspection_dies_with_the_api(
    inspection: tuple[psutil.Popen, psutil.Process],
) -> None:
    parent, child = inspection
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not child.is_running() or child.status() == "zombie", timeout_s=5)


def test_an_inspection_has_no_password_and_little_else(
    inspection: tuple[psutil.Popen, psutil.Process],
) -> None:
    _, child = inspection
    environment = Path(f"/proc/{child.pid}/environ").read_bytes().decode()
    assert "secret" not in environment
    assert child.rlimit(psutil.RLIMIT_FSIZE) == (0, 0)
    assert child.rlimit(psutil.RLIMIT_CORE) == (0, 0)
    assert 0 < child.rlimit(psutil.RLIMIT_CPU)[1] <= 300
    assert 2**30 < child.rlimit(psutil.RLIMIT_DATA)[1] < 1.25 * 2**30
    assert os.getsid(child.pid) == child.pid


def test_an_inspection_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "x.npy")
    monkeypatch.setattr(files, "INSPECTION_TIMEOUT_S", 1.0)
    with pytest.raises(ApiError, match="too much time"):
        files.inspect(tmp_path / "x.npy", "x.npy", 1000)
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    assert not any("mptcore.data.inspect" in command for command in commands)
