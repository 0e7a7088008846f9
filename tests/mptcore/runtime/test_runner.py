"""The runner, in this process."""

import io
import json
from collections.abc import Iterator

import pytest
import torch

from mptcore.protocol.orders import parse_assignment
from mptcore.runtime import runner
from tests.mptcore.test_filter import SMALL, line


def test_memory_that_torch_does_not_get_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a failure record; torch says it in words of its own."""

    def hungry(*arguments: object) -> Iterator[None]:
        yield None
        torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr(runner, "resumable", hungry)
    out = io.StringIO()
    assert runner.Runner(parse_assignment(line(SMALL)), out).run() == runner.FAILED
    (failure,) = map(json.loads, out.getvalue().splitlines())
    assert (failure["record"], failure["cause"]) == ("failure", "oom")
