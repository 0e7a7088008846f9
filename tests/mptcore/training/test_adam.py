"""Training does not import torch's compiler, which takes two seconds, nor its symbolic shapes,
which take one. Adam is torch's otherwise."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mptcore.run import run
from mptcore.training.adam import Adam
from tests.mptcore.training.test_seeds_apart import FAMILIES
from tests.support.forks import run_code
from tests.support.runs import points, spec_of


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be imported."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)


def stepped(optimizer_class: Any) -> Tensor:
    """A parameter after steps by two optimizers, the second of which continues from the first."""
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    state: dict[str, Any] | None = None
    for _ in range(2):
        optimizer = optimizer_class([parameter], lr=0.1, fused=True)
        if state is not None:
            optimizer.load_state_dict(state)
        for target in (1.0, -3.0, 0.5):
            optimizer.zero_grad(set_to_none=True)
            (parameter - target).square().sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        state = optimizer.state_dict()
    return parameter.detach()


def test_adam_steps_equal_those_of_torch() -> None:
    assert torch.equal(stepped(Adam), stepped(torch.optim.Adam))


@pytest.mark.usefixtures("no_compiler")
def test_adam_needs_no_compiler() -> None:
    stepped(Adam)
    with pytest.raises(ImportError, match="_dynamo"):
        stepped(torch.optim.Adam)


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("family", ["ppca", "linear vae", "vae"])
def test_a_training_needs_no_compiler(family: str) -> None:
    assert points(list(run(spec_of(FAMILIES[family]))), "lml")


STEPS = """
import os
import torch
from mptcore.training.adam import Adam

def threads_after_step(count):
    weights = torch.ones(count, dtype=torch.float64, requires_grad=True)
    weights.grad = torch.linspace(-1, 1, count, dtype=torch.float64)
    Adam([weights], lr=0.1, fused=True).step()
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(2)
before = len(os.listdir("/proc/self/task"))
small = threads_after_step(2**12) - before
print(small, torch.get_num_threads(), threads_after_step(2**20) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_step_of_few_parameters_starts_no_thread(tmp_path: Path) -> None:
    found = run_code(STEPS, tmp_path, {})
    assert found.stdout.split() == ["0", "2", "1"]
