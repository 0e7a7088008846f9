"""The runner, in this process."""

import io
import json
from collections.abc import Iterator

import torch

from mptcore.protocol.exit_codes import FAILED
from mptcore.protocol.orders import parse_assignment
from mptcore.runtime.runner import SpecRunner
from tests.support.specs import SMALL, line


def test_memory_that_torch_does_not_get_is_told() -> None:
    """By a failure record; torch says it in words of its own."""

    def hungry(*arguments: object) -> Iterator[None]:
        yield None
        torch.empty(2**60, dtype=torch.uint8)

    out = io.StringIO()
    assert SpecRunner(hungry, parse_assignment(line(SMALL)), out).run() == FAILED
    (failure,) = map(json.loads, out.getvalue().splitlines())
    assert (failure["record"], failure["cause"]) == ("failure", "oom")
