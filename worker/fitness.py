"""Check whether a worker can compute. A defective worker ends itself and fails no run."""

import os
import subprocess
import sys

from worker.children import environment

CHECK = "import torch; torch.zeros(1, device='cuda').sum().item()"
"""Test program. It runs in a separate process, because a worker imports no torch and opens no CUDA
context."""

NO_GPU = "no_gpu"
DEVICE = "device"
"""Causes in a runner's failure record: no GPU was found, or one that failed meanwhile."""


UNFIT = "worker unfit"
"""Outcome of an attempt that its worker could not start."""
DEVICE_FAILED = "GPU failed"
"""Outcome of an attempt whose GPU failed. The worker checks its GPU before it continues."""


class UnfitWorker(Exception):
    """The worker has no usable GPU although it should, or no torch. The run is not at fault."""


def require_gpu() -> None:
    """End this process if torch cannot compute on the GPU that its runners would use."""
    if (why := gpu_defect()) is not None:
        raise SystemExit(
            f"this worker can use no GPU ({why}). Look at CUDA_VISIBLE_DEVICES and nvidia-smi, and "
            "whether torch is its CUDA build; `mpt worker cpu` needs none"
        )


def gpu_defect() -> str | None:
    """Return why torch cannot compute on the GPU that runners would use, or None if it can."""
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    *_, why = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    return why


def hide_gpus() -> None:
    """Hide all GPUs from the runners of a CPU worker."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
