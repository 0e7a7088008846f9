"""Checks of the processes of runs on a GPU: forks of a warm parent, memory, kills and failures."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.inputs import Sizes, vectors
from benchmarks.gpu.lines import Line, within
from mptcore.protocol.exit_codes import COMPLETE, FAILED
from mptcore.specs import parse_spec
from worker import gpus
from worker.children import Spawned, Stdio, WarmParent
from worker.runner import Record, Runner

CONTEXT_BYTES = 700 * 2**20
"""Memory that service.queue.memory plans for a context; the service is not installed everywhere."""
SLOW_S = 120.0
"""Seconds after which a process counts as stuck."""
FAILING = """
import os
import torch
import mptcore.run

def resumable(spec, session, resumed):
    {failure}
    yield None

mptcore.run.resumable = resumable
from mptcore.__main__ import supervised
os._exit(supervised())
"""
FAILURES = {
    "cuda": "torch.zeros(4, device='cuda')[torch.tensor([9], device='cuda')].sum().item()",
    "cpu": "raise RuntimeError('CUDA error: device-side assert triggered')",
}
PPCA = {"family": "ppca", "latent_dim": 4, "noise_precision": 5.0, "init": "random"}


def forks(sizes: Sizes) -> Iterator[Line]:
    """A warm parent must have no CUDA context, which would not survive a fork."""
    spec = _spec(sizes)
    times = []
    with _warm_parent() as parent:
        for _ in range(sizes.forks):
            began = time.perf_counter()
            told, status = finished(Runner(parent.fork), spec)
            times.append(time.perf_counter() - began)
            if status != COMPLETE:
                yield Line("a fork of the warm parent", f"{status}: {told[-1:]}", "0", holds=False)
                return
    what = f"{sizes.forks} forks of the warm parent: median of a small run"
    yield within(what, median(times), 6.0, "s", decides=sizes.is_timed)


def memory_of_a_run(sizes: Sizes) -> Iterator[Line]:
    """Check what is planned for a run against what it took, and whether NVML knows its process."""
    spec = _spec(sizes, per_size=20)
    uuids = gpus.visible()
    runner = Runner(Spawned)
    ours: list[int] = []
    records = []
    for some in _records(runner, spec):
        records += some
        if uuids:
            ours.append(gpus.figures(uuids[0], runner.child.pid)["gpu_memory_ours"])
    runner.kill()
    (reserved,) = [one["device_bytes"] for one in records if one["record"] == "memory"] or [0]
    planned = parse_spec(json.dumps(spec).encode()).memory_estimate() + CONTEXT_BYTES
    seen = max(ours, default=0)
    told = f"{reserved / 2**20:.0f} MiB of tensors; NVML: {seen / 2**20:.0f} MiB in all"
    yield Line("memory of a small run", told, f"≤ {planned / 2**20:.0f} MiB", seen / planned,
               seen <= planned)  # fmt: skip
    yield Line("NVML knows the run's process", f"{seen > 0}", "True in no container")


def killed_in_mid_kernel(sizes: Sizes) -> Iterator[Line]:
    """Kill a run, and wait until its memory is free."""
    before = torch.cuda.mem_get_info()[0]
    runner = Runner(Spawned)
    for some in _records(runner, _spec(sizes, per_size=2000)):
        if any(one["record"] in ("progress", "point") for one in some):
            break
    held = before - torch.cuda.mem_get_info()[0]
    began = time.perf_counter()
    runner.kill()
    while torch.cuda.mem_get_info()[0] < before - 2**26:
        if time.perf_counter() - began > SLOW_S:
            break
        time.sleep(0.01)
    what = f"kill -9 of a run that holds {held / 2**20:.0f} MiB: until they are free"
    yield within(what, time.perf_counter() - began, 2.0, "s", decides=sizes.is_timed)


def failed_gpu(sizes: Sizes) -> Iterator[Line]:
    """After an assertion of a kernel the context is lost: the cause must be `device`, and the next
    process must not notice."""
    code = FAILING.format(failure=FAILURES[sizes.device])

    def failing(stdio: Stdio) -> Spawned:
        return Spawned(stdio, (sys.executable, "-c", code))

    records, status = finished(Runner(failing), _spec(sizes))
    causes = [one["cause"] for one in records if one["record"] == "failure"]
    holds = (status, causes) == (FAILED, ["device"])
    yield Line("a run whose GPU fails", f"status {status}, causes {causes}", "device", holds=holds)
    _, status = finished(Runner(Spawned), _spec(sizes))
    yield Line("the next run", f"status {status}", "0", holds=status == COMPLETE)


def _spec(sizes: Sizes, per_size: int = 1) -> dict[str, Any]:
    masks = {"schedule": "all", "per_size": per_size}
    compute = {"device": sizes.device, "threads": 1}
    return vectors(PPCA, sizes, evaluate={"masks": masks}, compute=compute)


@contextmanager
def _warm_parent() -> Iterator[WarmParent]:
    parent = WarmParent()
    try:
        give_up_at = time.monotonic() + SLOW_S
        assert parent.wait_until_ready(lambda: time.monotonic() > give_up_at), parent.ending
        yield parent
    finally:
        parent.close()


def _records(runner: Runner, spec: dict[str, Any] | None) -> Iterator[list[Record]]:
    """Start a run, unless it was started, and yield its records as they arrive."""
    give_up_at = time.monotonic() + SLOW_S
    if spec is not None:
        runner.start({"spec": spec})
    while runner.alive or runner.has_unread:
        runner.wait(0.1 if runner.alive else 0)
        yield [*iter(runner.next_record, None)]
        assert time.monotonic() < give_up_at, f"no end after {SLOW_S} s: {runner.stderr}"
    runner.wait(0)
    yield [*iter(runner.next_record, None)]


def finished(runner: Runner, spec: dict[str, Any] | None = None) -> tuple[list[Record], int]:
    """Return the records of a run, and its exit status."""
    records = [one for some in _records(runner, spec) for one in some]
    status = runner.kill()
    if runner.stderr:
        print(runner.stderr, file=sys.stderr)
    return records, status


CHECKS = (forks, memory_of_a_run, killed_in_mid_kernel, failed_gpu)
