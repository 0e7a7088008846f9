"""Select the device, number type and arithmetic of a run."""

import os
import re

import torch
from torch import Tensor

from mptcore.protocol.records import RunError
from mptcore.specs.compute import DeviceName, Machine

DEVICE_SIGNS = re.compile(r"CUDA (driver )?error|CUBLAS_STATUS_|CUDNN_STATUS_|cuDNN error")
"""Errors of libraries that torch raises without a class of their own."""
ARITHMETIC = {
    "error": "deterministic kernels alone",
    "warn": "deterministic kernels where CUDA has them",
    "default": "the fastest kernels",
}
"""Names of the kernels that a GPU uses, by torch's mode of deterministic algorithms."""


def device_of(name: DeviceName) -> torch.device:
    """Return the device of a run. It is the first GPU, because a worker sees only one. Raises
    RunError if there is none, or if it has no memory left for a context."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise RunError(
            "no_gpu", "compute.device is cuda and this machine has none: use auto or cpu"
        )
    if not available or name == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", 0)
    try:
        torch.cuda.mem_get_info(device)
    except RuntimeError as error:  # also if memory is short, which is not this run's fault
        raise RunError("device", f"no context could be made on the GPU: {error}") from error
    return device


def is_device_failure(error: BaseException) -> bool:
    """Return whether the error means that a GPU, or this process's context on it, can no longer be
    used: a defect of the card, a driver that is gone, or an assertion of a kernel."""
    return isinstance(error, torch.AcceleratorError) or bool(
        isinstance(error, RuntimeError) and DEVICE_SIGNS.search(str(error))
    )


def dtype_of(precision: str, device: torch.device) -> torch.dtype:
    """Return the number type of a spec's precision on a device."""
    if precision == "auto":
        on_gpu = device.type == "cuda"
        has_bfloat16 = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bfloat16 else torch.float32
    dtype: torch.dtype = getattr(torch, precision)
    return dtype


def to_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy numbers to a device. A GPU reads them from pinned memory without making the CPU wait."""
    if device.type == "cuda" and not numbers.is_cuda:
        numbers = numbers.pin_memory()
    return numbers.to(device, non_blocking=True)


def name_of(device: torch.device) -> str:
    """Return the part of the device's name on which random draws and the last digits of results
    depend."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({torch.backends.cpu.get_cpu_capability()})"


def set_arithmetic(device: torch.device, compute: Machine, trains_network: bool = False) -> str:
    """Allow or forbid TF32, sums in bfloat16 and nondeterministic kernels on a GPU, and return what
    was set, for the log. Call it before the first computation. On a CPU only threads and
    instructions matter. With `trains_network`, a language model's gradient, all kernels must be
    deterministic: attention has such kernels, but uses them only then."""
    fast = compute.determinism == "fast"
    torch.backends.cuda.matmul.allow_tf32 = fast
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = fast
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = fast
    torch.backends.cuda.enable_cudnn_sdp(False)  # because it builds a plan for every new shape
    torch.backends.cudnn.allow_tf32 = fast
    torch.backends.cudnn.benchmark = fast
    torch.backends.cudnn.deterministic = not fast
    exact_gpu = device.type == "cuda" and not fast
    if exact_gpu:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # cuBLAS reads it when it starts
    # For some operations CUDA has no deterministic kernel. torch then only warns.
    mode = "default" if not exact_gpu else "error" if trains_network else "warn"
    torch.set_deterministic_debug_mode(mode)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return ARITHMETIC[mode]
