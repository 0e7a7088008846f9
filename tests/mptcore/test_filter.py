"""`python -m mptcore` as its users know it: a process, its lines and its exit status. Behaviour
that needs no process is tested by its functions."""

import io
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mptcore import __main__
from mptcore.protocol.exit_codes import COMPLETE, FAILED
from tests.support.specs import SMALL, line

ROOT = Path(__file__).parents[2]


def start(*options: str) -> subprocess.Popen[bytes]:
    """Start the filter without compiled loops, which take a second to load."""
    return subprocess.Popen(
        [sys.executable, "-m", "mptcore", *options],
        cwd=ROOT,
        env={**os.environ, "MPT_KERNELS": "torch"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(text: bytes, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, records and stderr of one run."""
    process = start(*options)
    out, errors = process.communicate(text, timeout=120)
    return process.returncode, [json.loads(row) for row in out.splitlines()], errors.decode()


@cache
def once() -> tuple[int, list[dict[str, Any]], str]:
    """Run the filter once; stdin contains only the spec."""
    return run(json.dumps(SMALL, indent=2).encode())


def test_a_run_gives_its_records_in_order_and_ends_with_0() -> None:
    status, records, errors = once()
    assert (status, errors) == (0, "")
    numbers = [record["seq"] for record in records if record["record"] != "progress"]
    assert numbers == list(range(1, len(numbers) + 1))
    curve = [r for r in records if r["record"] == "point" and r["labels"] == {"seed": 4}]
    assert [point["x"] for point in curve] == [1, 2, 3, 4, 5, 6]
    assert {"lml", "mpt", "difference"} == {r["name"] for r in records if r["record"] == "metric"}
    progress = [r for r in records if r["record"] == "progress"][-1]
    assert progress["done"] == progress["total"] == 36
    assert progress["seq"] is None


def test_a_bad_spec_ends_with_2_and_a_sentence_for_each_field() -> None:
    spec = {**SMALL, "bogus": 1, "seeds": []}
    status, records, errors = run(line(spec))
    assert (status, records) == (2, [])
    told = dict(row.split(": ", 1) for row in errors.splitlines())
    assert set(told) == {"/bogus", "/seeds"}
    assert "unknown field; allowed here: " in told["/bogus"]


@pytest.mark.parametrize("text", [b"", b"not json\n", b"[1]\n"])
def test_input_that_is_not_a_spec_ends_with_2(text: bytes) -> None:
    status, records, errors = run(text)
    assert (status, records) == (2, [])
    assert errors.startswith("/: ")


def test_a_failure_is_the_last_record_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data of rank 2 leave no variance to a model of 4 dimensions."""
    spec = {
        **SMALL,
        "model": {"family": "ppca", "latent_dim": 4, "init": "maximum_likelihood"},
        "data": {**SMALL["data"], "n": 3},
    }
    monkeypatch.setattr(sys, "argv", ["mptcore"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line(spec))))
    assert __main__.main() == FAILED == 1
    records = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    assert records[-1]["record"] == "failure"
    assert "lower latent_dim" in records[-1]["message"]
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))


READY = {"seq": None, "record": "ready"}


def test_supervised_the_spec_is_the_first_line() -> None:
    process = start("--supervised")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line(SMALL) + b'{"checkpoint": "a"}\n')
    process.stdin.flush()  # stdin stays open: the run must not wait for its end
    records = [json.loads(row) for row in process.stdout]
    assert process.wait(timeout=60) == 0
    process.communicate()
    ready, first, environment, *rest, end = records
    assert ready == READY
    assert (environment["seq"], environment["record"]) == (None, "environment")
    assert end == {"seq": None, "record": "end", "count": rest[-1]["seq"]}
    assert [first, *rest] == once()[1]  # those of another process, that nobody supervises


def test_supervised_the_end_of_the_file_ends_the_run() -> None:
    process = start("--supervised")
    assert process.stdin is not None
    assert process.stdout is not None
    long = {**SMALL, "evaluate": {"masks": {"schedule": "all", "per_size": 1_000_000}}}
    process.stdin.write(line(long))
    process.stdin.flush()
    assert json.loads(process.stdout.readline()) == READY
    assert json.loads(process.stdout.readline())["seq"] == 1
    process.stdin.close()
    assert process.wait(timeout=10) == 1
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()


def test_supervised_the_envelope_adds_environment_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: dict[str, str] = {}

    class Runner:
        def __init__(self, *arguments: object, supervised: bool) -> None:
            self.obey = None

        def run(self) -> int:
            found.update(os.environ)
            return COMPLETE

    envelope = {"spec": SMALL, "environment": {"HF_TOKEN": "from the envelope"}}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line(envelope))))
    monkeypatch.setattr("mptcore.runtime.runner.SpecRunner", Runner)
    monkeypatch.setattr(__main__, "follow_orders", lambda *_: None)
    monkeypatch.setenv("HF_TOKEN", "to be restored after the test")
    assert __main__.supervised() == COMPLETE
    assert found["HF_TOKEN"] == "from the envelope"


def test_a_spare_process_without_a_spec_ends_with_0(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # which it replaces
    assert __main__.supervised() == COMPLETE == 0
    said, told = capfd.readouterr()
    assert (json.loads(said), told) == (READY, "")
