"""The runner, in this process."""

import io
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from mptcore.protocol.exit_codes import COMPLETE, FAILED, STOPPED
from mptcore.protocol.orders import Assignment, Order, parse_assignment
from mptcore.protocol.records import Checkpoint, Log, Progress
from mptcore.runtime import runner
from mptcore.runtime.checkpoint import Snapshot, files
from mptcore.runtime.runner import SpecRunner
from mptcore.runtime.state import RunState
from tests.support.runs import spec_of
from tests.support.specs import SMALL, line


def test_a_failed_allocation_of_torch_is_reported_as_out_of_memory() -> None:
    """The run sends a failure record; torch reports the error in a different form."""

    def hungry(*arguments: object) -> Iterator[None]:
        yield None
        torch.empty(2**60, dtype=torch.uint8)

    out = io.StringIO()
    assert SpecRunner(hungry, parse_assignment(line(SMALL)), out).run() == FAILED
    (failure,) = map(json.loads, out.getvalue().splitlines())
    assert (failure["record"], failure["cause"]) == ("failure", "oom")
    advice = "out of memory: lower data.n, compute.memory_mib or the size of the model ("
    assert failure["message"].startswith(advice)


@pytest.mark.parametrize(("supervised", "waits_s"), [(True, 60), (False, 0)])
def test_a_full_disk_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch, supervised: bool, waits_s: float
) -> None:
    """Also by an error of a library that has the full disk as its cause: no traceback. The run is
    not started again at once."""
    waited_s = [0.0]
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=waited_s.append)
    monkeypatch.setattr(runner, "time", clock)

    def failing(*arguments: object) -> Iterator[None]:
        yield None
        try:
            with open("/dev/full", "wb", buffering=0) as file:
                file.write(b"x")
        except OSError as error:
            raise RuntimeError("the download failed") from error

    out = io.StringIO()
    assert SpecRunner(failing, parse_assignment(line(SMALL)), out, supervised).run() == FAILED
    *_, failure = map(json.loads, out.getvalue().splitlines())
    assert (failure["record"], failure["cause"]) == ("failure", "disk_full")
    assert "the download failed" in failure["message"]
    assert sum(waited_s) == waits_s


def test_a_gpu_that_failed_is_reported_as_such() -> None:
    def failing(*arguments: object) -> Iterator[None]:
        yield None
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    out = io.StringIO()
    assert SpecRunner(failing, parse_assignment(line(SMALL)), out).run() == FAILED
    (failure,) = map(json.loads, out.getvalue().splitlines())
    assert failure["cause"] == "device"
    assert failure["message"] == "the GPU failed: CUDA error: uncorrectable ECC error encountered"


def test_the_memory_of_a_gpu_is_reported_when_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look twice a second at most, and at the end."""
    at = {"time": 0.0, "peak": 0.0}

    def growing(*arguments: object) -> Iterator[None]:
        for at["time"], at["peak"] in ((10.0, 5), (10.4, 6), (10.6, 5), (11.2, 9)):
            yield None

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: at["peak"])
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: at["time"]))
    monkeypatch.setattr(SpecRunner, "_tell_environment", lambda _: None)
    for supervised, expected in ((True, [5, 9, 9]), (False, [])):
        out = io.StringIO()
        assignment = parse_assignment(line(SMALL))
        assert SpecRunner(growing, assignment, out, supervised).run() == COMPLETE
        found = [json.loads(text) for text in out.getvalue().splitlines()]
        assert [one["device_bytes"] for one in found if one["record"] == "memory"] == expected


@pytest.mark.parametrize(("saving_s", "saved_at"), [(0.5, [30, 60, 90, 120, 150]), (11, [30, 140])])
def test_slow_checkpoints_are_saved_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saving_s: float, saved_at: list[float]
) -> None:
    """In at most a tenth of the run's time."""
    at, found = 0.0, list[float]()
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: at))

    def steps(*arguments: object) -> Iterator[None]:
        nonlocal at
        began._state.at_safe_point = True
        while at < 155:
            at += 1
            yield None
            if began._being_written is not None:
                wait([began._being_written])
                at = found[-1]

    def save(snapshot: Snapshot, folder: Path) -> Checkpoint:
        nonlocal at
        found.append(at)
        at += saving_s
        return Checkpoint("file", "digest", snapshot.after)

    monkeypatch.setattr(Snapshot, "save", save)
    assignment = Assignment(spec_of(SMALL), checkpoint_dir=tmp_path, save_every_s=30.0)
    began = SpecRunner(steps, assignment, io.StringIO())
    began._saved_at = at
    assert began.run() == COMPLETE
    assert found == saved_at


@pytest.fixture
def pen(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Semaphore that a pending write must acquire before it continues."""
    held = threading.Semaphore(0)
    real = Snapshot.save

    def save(snapshot: Snapshot, folder: Path) -> Checkpoint:
        assert held.acquire(timeout=10)
        return real(snapshot, folder)

    monkeypatch.setattr(Snapshot, "save", save)
    return held


def saving_each_step(steps: Callable[..., Iterator[Log]], folder: Path) -> SpecRunner:
    assignment = Assignment(spec_of(SMALL), checkpoint_dir=folder, save_every_s=1e-9)
    made = SpecRunner(steps, assignment, io.StringIO())
    made._state.at_safe_point = True
    return made


def told(runner: SpecRunner) -> list[tuple[str, int]]:
    """The kinds of its lines, and the records that they are about."""
    assert isinstance(runner.out, io.StringIO)
    lines = map(json.loads, runner.out.getvalue().splitlines())
    return [(line["record"], line["seq"] or line["after"]) for line in lines]


def test_progress_has_no_seq(tmp_path: Path) -> None:
    """It is sent at the ends of batches, whose sizes differ on a GPU. Progress is not repeated."""
    spec = spec_of(SMALL)
    Snapshot.of(RunState(seq=1, masks=20), spec).save(tmp_path)

    def steps(*arguments: object) -> Iterator[Log | Progress]:
        yield Log("info", "one")
        yield Progress(10, 40, "masks")
        yield Progress(20, 40, "masks")
        yield Progress(30, 40, "masks")
        yield Log("info", "two")

    out = io.StringIO()
    assert SpecRunner(steps, Assignment(spec, checkpoint_dir=tmp_path), out).run() == COMPLETE
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["record"], line["seq"]) for line in lines] == [("progress", None), ("log", 2)]
    assert lines[0]["done"] == 30


def test_a_run_continues_while_it_is_saved(tmp_path: Path, pen: threading.Semaphore) -> None:
    """No second save begins during the first."""

    def steps(*arguments: object) -> Iterator[Log]:
        yield Log("info", "one")
        yield Log("info", "two")
        pen.release()
        assert began._being_written is not None
        wait([began._being_written])
        yield Log("info", "three")

    began = saving_each_step(steps, tmp_path)
    assert began.run() == COMPLETE
    assert told(began) == [
        ("log", 1), ("snapshot", 1), ("log", 2), ("log", 3), ("checkpoint", 1),
    ]  # fmt: skip


def test_an_unsupervised_run_reports_every_checkpoint(
    tmp_path: Path, pen: threading.Semaphore
) -> None:
    def steps(*arguments: object) -> Iterator[Log]:
        yield Log("info", "one")
        pen.release()

    assert (began := saving_each_step(steps, tmp_path)).run() == COMPLETE
    assert told(began) == [("log", 1), ("snapshot", 1), ("checkpoint", 1)]


def test_an_unsupervised_run_keeps_the_two_latest_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MAX_SAVING", math.inf)

    def steps(*arguments: object) -> Iterator[Log]:
        for number in range(5):
            yield Log("info", str(number))
            assert began._being_written is not None
            wait([began._being_written])

    began = saving_each_step(steps, tmp_path)
    assert began.run() == COMPLETE
    assert [kind for kind, _ in told(began)].count("checkpoint") == 5
    assert [int(path.name[:9]) for path in files(tmp_path)] == [5, 4]


def test_a_stop_that_is_withdrawn_stops_nothing(tmp_path: Path, pen: threading.Semaphore) -> None:
    def steps(*arguments: object) -> Iterator[Log]:
        began.obey(Order(stop="checkpoint"))
        began.obey(Order(stop="withdrawn"))
        pen.release(9)
        yield Log("info", "one")

    began = saving_each_step(steps, tmp_path)
    assert began.run() == COMPLETE


def test_a_supervised_run_that_cannot_be_saved_goes_on(
    tmp_path: Path, pen: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor kills it if it must."""

    def save(*_: object) -> NoReturn:
        raise OSError(5, "Input/output error")

    def steps(*arguments: object) -> Iterator[Log]:
        began.obey(Order(stop="checkpoint"))
        for number in range(3):
            yield Log("info", str(number))

    monkeypatch.setattr(Snapshot, "save", save)
    pen.release(9)
    began = saving_each_step(steps, tmp_path)
    began.supervised = True
    assert began.run() == COMPLETE


def test_a_stop_during_a_due_save_waits_for_another_one(
    tmp_path: Path, pen: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order arrives in another thread while the state is copied."""
    copied = Snapshot.of

    def copy(*arguments: Any) -> Snapshot:
        began.obey(Order(stop="checkpoint"))
        return copied(*arguments)

    def steps(*arguments: object) -> Iterator[Log]:
        for number in range(6):
            yield Log("info", str(number))

    monkeypatch.setattr(Snapshot, "of", copy)
    pen.release(9)
    began = saving_each_step(steps, tmp_path)
    assert began.run() == STOPPED
    assert told(began)[-1][0] == "checkpoint"


def test_a_stop_waits_for_the_checkpoint_in_progress(
    tmp_path: Path, pen: threading.Semaphore
) -> None:
    """The stop also waits for the save that begins then."""

    def steps(*arguments: object) -> Iterator[Log]:
        yield Log("info", "one")
        began.stop_requested = True
        pen.release(2)
        yield Log("info", "two")
        raise AssertionError("it was to stop")

    began = saving_each_step(steps, tmp_path)
    assert began.run() == STOPPED
    assert told(began) == [
        ("log", 1), ("snapshot", 1), ("log", 2),
        ("checkpoint", 1), ("snapshot", 2), ("checkpoint", 2),
    ]  # fmt: skip
    assert len(files(tmp_path)) == 2
