"""Results of a benchmark, and the table of all of them."""

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Row:
    """One line: a ratio measured in one run, or a time against a limit."""

    name: str
    work: str
    seconds: float
    against: str
    """Baseline of `ratio`: how it was timed, and on which part."""
    ratio: float | None
    goal: str
    met: bool
    remark: str = ""


Benchmark = Callable[[int], Iterator[Row]]
"""Rows, measured with a number of threads."""


class SkippedError(Exception):
    """Error of a benchmark that cannot run here, with the reason."""


def markdown(rows: list[Row], skipped: list[str], threads: int) -> str:
    head = "| work | time | against | ratio | goal | met |\n|---|---|---|---|---|---|"
    lines = [
        f"| {row.work}{'; ' + row.remark if row.remark else ''} | {row.seconds:.3g} s "
        f"| {row.against} | {'' if row.ratio is None else f'{row.ratio:.3g}'} "
        f"| {row.goal} | {'yes' if row.met else 'NO'} |"
        for row in rows
    ]
    notes = [f"Not run: {reason}." for reason in skipped]
    return "\n".join([machine(threads), "", head, *lines, "", *notes, ""])


def machine(threads: int) -> str:
    return (
        f"{_processor()}, {os.cpu_count()} cores, {threads} threads used; "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {_device()}, float64 unless said otherwise."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
