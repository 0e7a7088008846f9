"""Runners whose process is another program than mptcore."""

import sys
from functools import partial

from worker.children import Spawned
from worker.runner import Record, Runner


def stub(*options: str) -> Runner:
    """A runner whose process is the stub."""
    return started(sys.executable, "-m", "tests.support.stub_runner", *options)


def started(*command: str) -> Runner:
    """A runner whose process is that of a command."""
    return Runner(partial(Spawned, command=command))


def all_records(runner: Runner) -> list[Record]:
    """The records that a runner gives, to its end."""
    records: list[Record] = []
    has_ended = False
    while not has_ended or runner.has_unread:
        has_ended = not runner.alive
        runner.wait(0 if has_ended else 0.1)
        records += iter(runner.next_record, None)
    return records
