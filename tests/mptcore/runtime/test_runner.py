"""The runner, in this process."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mptcore.protocol.exit_codes import COMPLETE, FAILED
from mptcore.protocol.orders import Assignment, parse_assignment
from mptcore.protocol.records import Checkpoint
from mptcore.runtime import checkpoint, runner
from mptcore.runtime.runner import SpecRunner
from mptcore.runtime.session import Session
from mptcore.specs import ExperimentSpec
from tests.support.runs import spec_of
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


@pytest.mark.parametrize(
    ("saving_s", "saved_at"), [(0.5, [30, 60.5, 91, 121.5, 152]), (11, [30, 151])]
)
def test_what_takes_long_is_saved_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saving_s: float, saved_at: list[float]
) -> None:
    """In at most a tenth of the run's time."""
    at, found = 0.0, list[float]()
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: at))

    def steps(*arguments: object) -> Iterator[None]:
        nonlocal at
        began._session.at_safe_point = True
        while at < 155:
            at += 1
            yield None

    def save(session: Session, spec: ExperimentSpec, folder: Path) -> Checkpoint:
        nonlocal at
        found.append(at)
        at += saving_s
        return Checkpoint("file", "digest", session.seq)

    monkeypatch.setattr(checkpoint, "save", save)
    assignment = Assignment(spec_of(SMALL), checkpoint_dir=tmp_path, save_every_s=30.0)
    began = SpecRunner(steps, assignment, io.StringIO())
    began._saved_at = at
    assert began.run() == COMPLETE
    assert found == saved_at
