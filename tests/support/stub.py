"""Runners whose process is another program than mptcore."""

import sys
from functools import partial

from worker.children import Spawned
from worker.runner import Runner


def stub(*options: str) -> Runner:
    """A runner whose process is the stub."""
    return started(sys.executable, "-m", "tests.support.stub_runner", *options)


def started(*command: str) -> Runner:
    """A runner whose process is that of a command."""
    return Runner(partial(Spawned, command=command))
