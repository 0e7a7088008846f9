"""The environment that a supervised run reports."""

import hashlib
import io
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from mptcore import run
from mptcore.families.linear_gaussian.moment_solvers import MomentSolver
from mptcore.protocol.code import core_digest
from mptcore.protocol.orders import Assignment, Input, Resume
from mptcore.runtime import checkpoint
from mptcore.runtime.environment import _cpu_model, environment
from mptcore.runtime.runner import SpecRunner
from mptcore.runtime.state import RunState
from mptlab_contract import records
from tests.support import tiny_lm
from tests.support.nvml import Nvml, NVMLError
from tests.support.ppca_spec import ppca_spec
from tests.support.runs import spec_of

COMPUTE = {"device": "cpu", "threads": 1, "memory_mib": 1}
TEXT: dict[str, Any] = {
    "model": {"family": "masked_lm", "checkpoint": "tiny"},
    "baseline": {"family": "masked_lm", "checkpoint": "tiny", "init": "random"},
    "data": {"source": "text", "file": "a.txt"},
    "evaluate": {"masks": {"schedule": "rates", "rates": [0.3, 0.5]}},
    "compute": COMPUTE,
}


def lines_of(
    spec: dict[str, Any],
    inputs: dict[str, Input] | None = None,
    supervised: bool = True,
    resume: Resume | None = None,
) -> list[dict[str, Any]]:
    out = io.StringIO()
    assignment = Assignment(spec_of(spec), inputs=inputs, resume=resume)
    assert SpecRunner(run.resumable, assignment, out, supervised=supervised).run() == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def environments(spec: dict[str, Any], **how: Any) -> list[dict[str, Any]]:
    return [line for line in lines_of(spec, **how) if line["record"] == "environment"]


def test_the_environment_has_code_machine_threads_precision_and_seeds() -> None:
    (found,) = environments(ppca_spec(seeds=[4, 44], compute=COMPUTE))
    assert found["seq"] is None
    assert found["core"] == core_digest()
    assert found["packages"]["torch"] == version("torch")
    assert found["packages"]["python"] == platform.python_version()
    assert "none" not in found["packages"].values()
    assert (found["threads"], found["precision"], found["seeds"]) == (1, "float64", [4, 44])
    assert found["cpu"]
    assert found["cpu_capability"]
    assert found["platform"] == platform.platform()
    assert found["gpu"] is found["gpu_driver"] is found["cuda"] is None
    assert found["inputs"] == {}


def test_the_environment_records_the_precision_chosen_by_auto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_lm.checkpoint(tmp_path / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path))
    found = environments({**TEXT, "data": {"source": "text", "lines": tiny_lm.lines(4)}})
    assert found[-1]["precision"] == "float32"


@pytest.mark.parametrize(
    ("asked_for", "there", "given"), [(3, 1, 2), (8, 3, 3), (2, 1, 2), (3, 4, 3), (3, 3, 3)]
)
def test_a_run_gets_no_more_threads_than_there_are_processors(
    monkeypatch: pytest.MonkeyPatch, asked_for: int, there: int, given: int
) -> None:
    """Its log and environment say how many it got."""
    monkeypatch.setattr(run, "processors", lambda: there)
    before = torch.get_num_threads()
    log, environment, *_ = lines_of(ppca_spec(compute={**COMPUTE, "threads": asked_for}))
    torch.set_num_threads(before)
    assert environment["threads"] == given
    more = f" (of {asked_for} asked for: its worker has no more processors)"
    assert log["message"].endswith(f"{given} threads{more if given < asked_for else ''}")


def test_a_run_resumed_with_fewer_threads_logs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = ppca_spec(compute={**COMPUTE, "threads": 3})
    before = torch.get_num_threads()
    monkeypatch.setattr(run, "processors", lambda: 2)
    records(spec_of(spec), tmp_path, stop_after=2)
    monkeypatch.setattr(run, "processors", lambda: 3)
    resume = Resume(files=[str(path) for path in checkpoint.files(tmp_path)], after=1)
    (found,) = environments(spec, resume=resume)
    torch.set_num_threads(before)
    assert found["resumed_from"].endswith(", 2 threads")


def test_a_run_that_was_short_of_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is sent again. The next run of this process has enough memory."""
    scores, refused = MomentSolver.scores, [True]

    def once_too_large(solver: MomentSolver, masks: Tensor) -> Tensor:
        if refused:
            refused.clear()
            raise MemoryError
        return scores(solver, masks)

    monkeypatch.setattr(MomentSolver, "scores", once_too_large)
    for told in ([False, True], [False]):
        found = environments(ppca_spec(compute=COMPUTE))
        assert [one["memory_was_short"] for one in found] == told
        assert not refused


def test_a_run_that_is_always_short_of_memory_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = MomentSolver.scores

    def too_large(solver: MomentSolver, masks: Tensor) -> Tensor:
        if len(masks) > 1:
            raise MemoryError
        return scores(solver, masks)

    monkeypatch.setattr(MomentSolver, "scores", too_large)
    found = environments(ppca_spec(seeds=[4, 44], compute=COMPUTE))
    assert [one["memory_was_short"] for one in found] == [False, True]


@pytest.mark.parametrize("was_short", [False, True])
def test_a_run_that_was_short_of_memory_before_it_resumed_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, was_short: bool
) -> None:
    """The scores of its checkpoint are kept."""
    spec, scores, refused = ppca_spec(compute=COMPUTE), MomentSolver.scores, [was_short]

    def once_too_large(solver: MomentSolver, masks: Tensor) -> Tensor:
        if refused.pop() if refused else False:
            raise MemoryError
        return scores(solver, masks)

    monkeypatch.setattr(MomentSolver, "scores", once_too_large)
    records(spec_of(spec), tmp_path, stop_after=4)
    resume = Resume(files=[str(path) for path in checkpoint.files(tmp_path)], after=1)
    assert [one["memory_was_short"] for one in environments(spec, resume=resume)] == [was_short]


def test_the_environment_is_sent_after_the_start_of_the_run() -> None:
    lines = lines_of(ppca_spec(compute=COMPUTE))
    assert [line["record"] for line in lines[:2]] == ["log", "environment"]


def test_an_unsupervised_run_prints_only_records_and_progress() -> None:
    lines = lines_of(ppca_spec(compute=COMPUTE), supervised=False)
    assert {line["record"] for line in lines if line["seq"] is None} == {"progress"}


def test_texts_and_checkpoints_are_recorded_with_their_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_lm.checkpoint(tmp_path / "models" / "tiny")
    text = tmp_path / "text" / "a.txt"
    text.parent.mkdir()
    text.write_text("".join(f"{line}\n" for line in tiny_lm.lines(6)))
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("MPT_DATA_DIR", str(tmp_path))
    lines = lines_of(TEXT)
    *_, last = (line for line in lines if line["record"] == "environment")
    whole, architecture = (
        f"MPT_MODELS_DIR/tiny, {files} together" for files in ("*.json and *.safetensors", "*.json")
    )
    assert set(last["inputs"]) == {"MPT_DATA_DIR/text/a.txt", whole, architecture}
    digest = hashlib.sha256(text.read_bytes()).hexdigest()
    assert last["inputs"]["MPT_DATA_DIR/text/a.txt"] == digest
    assert f"files sha256 {last['inputs'][whole]}" in lines[2]["message"]


def test_uploads_are_recorded_with_their_digests(tmp_path: Path) -> None:
    file = tmp_path / "mine.npy"
    np.save(file, np.random.default_rng(3).normal(size=(9, 4)))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    spec = ppca_spec(
        model={"family": "ppca", "latent_dim": 2, "init": "maximum_likelihood"},
        data={"source": "upload", "dataset": "one", "n": 9, "dim": 4},
        compute=COMPUTE,
    )
    found = environments(spec, inputs={"one": Input(file=str(file), sha256=digest)})[-1]
    assert found["inputs"] == {"MPT_STORE/datasets/one/data.*": digest}
    # The next run of this process has read nothing yet.
    assert environments(ppca_spec(compute=COMPUTE))[-1]["inputs"] == {}


@pytest.mark.parametrize("driver", ["610.0", None])
def test_a_gpu_is_recorded_with_its_driver(
    monkeypatch: pytest.MonkeyPatch, driver: str | None
) -> None:
    nvml = Nvml()
    if driver is None:
        monkeypatch.setattr(nvml, "nvmlInit", failing)
    monkeypatch.setitem(sys.modules, "pynvml", cast(ModuleType, nvml))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    monkeypatch.setattr(torch.version, "cuda", "13.1")
    state = RunState(device="a", precision="float64", saved_on="a")
    found = environment(spec_of(ppca_spec()), state)
    assert (found.gpu, found.gpu_driver, found.cuda) == ("A GPU", driver, "13.1")
    assert found.resumed_from is None
    state.saved_on = "b"
    assert environment(spec_of(ppca_spec()), state).resumed_from == "b"


def failing() -> None:
    raise NVMLError


def test_a_processor_is_named_without_proc_cpuinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "processor : 0\nmodel name\t: A CPU: the second\nmodel name\t: Other\n"
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    assert _cpu_model() == "A CPU: the second"
    text = "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\ncpu family\t: 9\n"
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    assert _cpu_model() == "AMD EPYC, cpu family 25, model 17"
    monkeypatch.setattr(Path, "read_text", lambda self: "flags: none\n")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv")
    assert _cpu_model() == "riscv"
    monkeypatch.setattr(platform, "processor", lambda: "a name")
    assert _cpu_model() == "a name"
