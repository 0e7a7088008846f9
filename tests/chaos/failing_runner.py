"""A run that exits while it saves: when it comes to a step of that for the third time."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch

from mptcore import run
from mptcore.protocol.orders import parse_assignment
from mptcore.runtime import checkpoint, runner
from tests.chaos.failing_worker import EXIT

SAVE_STEPS = ("write", "fsync", "rename", "renamed")
"""Just before each of them; `renamed` is just after a rename."""

_calls = 0


def exit_at(step: str) -> None:
    os.fsync = _exiting(os.fsync, before=step == "fsync")
    os.rename = _exiting(os.rename, before=step == "rename", after=step == "renamed")
    write = _exiting(safetensors.torch.save_file, before=step == "write")
    checkpoint.save_file = write  # type: ignore[attr-defined]


def _exiting(function: Callable[..., Any], before: bool, after: bool = False) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if before:
            _count()
        found = function(*arguments, **named)
        if after:
            _count()
        return found

    return call


def _count() -> None:
    global _calls
    _calls += 1
    if _calls == 3:
        os._exit(EXIT)


def _slowly(start: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
    """Slow the run down, so that a slow disk has time to save three times."""
    for step in start(*arguments):
        time.sleep(0.01)
        yield step


def main(order: dict[str, Any], output: Path, step: str | None = None) -> None:
    """Run the filter and write its records to a file."""
    start = run.resumable
    if step is not None:
        runner.MAX_SAVING = math.inf  # or a slow disk has it saved less often
        exit_at(step)
        start = partial(_slowly, start)
    with open(output, "w") as out:
        assignment = parse_assignment(json.dumps(order).encode())
        status = runner.SpecRunner(start, assignment, out).run()
    os._exit(status)
