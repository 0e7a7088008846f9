"""Device and settings of a run, and the description that the run gives of them."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from mptcore import run
from mptcore.protocol.orders import Assignment, Resume
from mptcore.protocol.records import RunError
from mptcore.runtime import checkpoint
from mptcore.runtime.device import (
    device_of,
    dtype_of,
    is_device_failure,
    name_of,
    set_arithmetic,
)
from mptcore.runtime.runner import SpecRunner
from mptcore.specs.compute import Compute
from mptlab_contract import records
from mptlab_contract.pretended_gpu import DEVICE, pretended_gpu
from tests.support import tiny_lm
from tests.support.runs import spec_of
from tests.support.specs import SMALL
from tests.support.vae_specs import LINEAR

CPU = torch.device("cpu")


def test_auto_uses_a_gpu_if_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == CPU
    with pytest.raises(RunError, match="this machine has none"):
        device_of("cuda")
    with pretended_gpu():
        assert device_of("auto") == torch.device("cuda", 0)
        assert device_of("cpu") == CPU
        assert name_of(DEVICE) == "a pretended GPU"


FEW_MASKS: dict[str, Any] = {
    **LINEAR,
    "evaluate": {"masks": {"schedule": "sizes", "sizes": [1, 2, 3], "per_size": 1}},
}


@pytest.mark.parametrize(
    ("spec", "device", "used"),
    [
        (SMALL, "auto", "cpu"),
        (SMALL, "cuda", "a pretended GPU"),
        (FEW_MASKS, "auto", "a pretended GPU"),
        (FEW_MASKS, "cpu", "cpu"),
    ],
)
def test_auto_is_the_cpu_for_a_linear_gaussian(
    spec: dict[str, Any], device: str, used: str, tmp_path: Path
) -> None:
    with pretended_gpu():
        lines = records(spec_of({**spec, "compute": {"device": device}}), tmp_path, stop_after=1)
    assert f" on {used}, " in json.loads(lines[0])["message"]


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: uncorrectable ECC error encountered"),
        RuntimeError("CUDA driver error: unknown error"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
    ],
    ids=str,
)
def test_errors_of_a_gpu_that_failed(error: RuntimeError) -> None:
    assert is_device_failure(error)
    assert not is_device_failure(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_device_failure(ValueError("CUDA error"))


def test_a_gpu_without_memory_for_a_context_is_not_the_fault_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pretended_gpu():
        monkeypatch.setattr(torch.cuda, "mem_get_info", full)
        with pytest.raises(RunError, match="no context could be made") as told:
            device_of("cuda")
        assert told.value.cause == "device"
        assert device_of("cpu") == CPU


def settings() -> tuple[bool, ...]:
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    short = (
        products.allow_bf16_reduced_precision_reduction,
        products.allow_fp16_reduced_precision_reduction,
    )
    tf32 = products.allow_tf32, cudnn.allow_tf32
    return *short, *tf32, cudnn.benchmark, not cudnn.deterministic


def test_determinism_settings_of_a_gpu() -> None:
    fast, exact = Compute(determinism="fast"), Compute()
    with pretended_gpu():
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
        set_arithmetic(DEVICE, fast)
        assert settings() == (True,) * 6
        assert not torch.are_deterministic_algorithms_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
        set_arithmetic(DEVICE, exact)
        assert settings() == (False,) * 6
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    set_arithmetic(CPU, exact)
    assert not torch.are_deterministic_algorithms_enabled()


TRAINED_LM: dict[str, Any] = {
    "model": {"family": "masked_lm", "checkpoint": "tiny"},
    "data": {"source": "text", "file": "lines.txt", "n": 8},
    "train": {"steps": 2, "batch_size": 4},
    "evaluate": {"masks": {"schedule": "rates", "rates": [0.5], "per_size": 2}},
    "compute": {"device": "cuda", "max_runtime_s": 60},
}


def test_a_language_model_trains_by_deterministic_kernels_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention has a deterministic gradient only in torch's strict mode. Scores and other families
    need no gradient of attention."""
    tiny_lm.checkpoint(tmp_path / "models" / "tiny")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "lines.txt").write_text("\n".join(tiny_lm.lines(8)))
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("MPT_DATA_DIR", str(tmp_path))
    scored = {name: part for name, part in TRAINED_LM.items() if name != "train"}
    for spec, mode in ((TRAINED_LM, "alone"), (scored, "where CUDA has them")):
        with pretended_gpu():
            first, *_ = records(spec_of(spec), tmp_path / mode)
            assert torch.get_deterministic_debug_mode() == (2 if mode == "alone" else 1)
        assert json.loads(first)["message"].endswith(f", deterministic kernels {mode}")


def resumed(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the environment of a run that resumes from the checkpoints in a folder."""
    out = io.StringIO()
    files = [str(path) for path in checkpoint.files(folder)]
    assignment = Assignment(spec_of(spec), resume=Resume(files=files, after=1))
    assert SpecRunner(run.resumable, assignment, out, supervised=True).run() == 0
    lines = map(json.loads, out.getvalue().splitlines())
    (found,) = (line for line in lines if line["record"] == "environment")
    return dict(found)


def test_a_run_resumed_on_another_device_names_the_first_one(tmp_path: Path) -> None:
    spec = {**FEW_MASKS, "compute": {"threads": 1, "device": "auto"}}
    with pretended_gpu():
        records(spec_of(spec), tmp_path, stop_after=2)
    assert resumed(spec, tmp_path)["resumed_from"] == "a pretended GPU"
    records(spec_of(spec), tmp_path, stop_after=3)
    assert resumed(spec, tmp_path)["resumed_from"] is None


def test_auto_is_bfloat16_if_the_gpu_supports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dtype_of("auto", CPU) == dtype_of("float32", CPU) == torch.float32
    assert dtype_of("bfloat16", CPU) == torch.bfloat16
    with pretended_gpu():
        assert dtype_of("auto", DEVICE) == torch.bfloat16
        assert dtype_of("float32", DEVICE) == torch.float32
        # GPUs from before 2020 emulate it slowly.
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
        assert dtype_of("auto", DEVICE) == torch.float32
