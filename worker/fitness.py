"""Whether a worker can compute: a defect of its own must fail no run, and ends the worker."""

import os
import subprocess
import sys

from worker.children import environment

CHECK = "import torch; torch.zeros(1, device='cuda').sum().item()"
"""In a process of its own: a worker imports no torch, and opens no CUDA context."""

NO_GPU = "no_gpu"
"""The cause in a runner's failure record."""


UNFIT = "worker unfit"
"""The outcome of an attempt that its worker could not begin."""


class UnfitWorker(Exception):
    """No GPU on a worker that has one to offer, or no torch: the worker's defect, not the run's."""


def require_gpu() -> None:
    """End this process where torch cannot compute on the GPU that its runners would see."""
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return
    *_, why = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    raise SystemExit(
        f"this worker can use no GPU ({why}). Look at CUDA_VISIBLE_DEVICES and nvidia-smi, and "
        "whether torch is its CUDA build; `mpt worker cpu` needs none"
    )


def hide_gpus() -> None:
    """From the runners of a CPU worker, which has none to give away."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
