"""The GPUs of this machine, as reported by NVML and as named by CUDA_VISIBLE_DEVICES.

`python -m worker.gpus` ends with status 0 if torch can compute on a GPU here, else with 1."""

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import pynvml

log = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible() -> list[str]:
    """UUIDs of the GPUs that this process may use, in the order of their PCI buses or of
    CUDA_VISIBLE_DEVICES. A divided GPU (MIG) is replaced by its parts. Empty if NVML reports
    none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.warning("no GPU can be seen: %s", error)
        return []
    names = os.environ.get(VISIBLE)
    if names is None:
        return [uuid for gpu in _machine() for uuid in _usable(gpu)]
    found = []
    for name in names.split(","):
        named = _named(name.strip())
        if not named:
            break  # CUDA also ignores all names after an unknown one
        found.append(named[0])
    return found


def figures(uuid: str, run_pid: int | None, run_bytes: int = 0) -> dict[str, Any]:
    """Return what a worker reports about its GPU, as far as the driver knows it. If the GPU shares
    its memory with the CPU, no memory figures are reported. In a container the driver may not know
    our run's process: then its own report, `run_bytes`, counts."""
    gpu = _told(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    if gpu is None:
        return {}
    memory = _told(pynvml.nvmlDeviceGetMemoryInfo, gpu)
    whole = _told(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, gpu) or gpu
    return {
        "gpu": _told(pynvml.nvmlDeviceGetName, gpu),
        "gpu_driver": _told(pynvml.nvmlSystemGetDriverVersion),
        "gpu_memory_total": memory and (int(memory.total) or None),
        "gpu_memory_free": int(memory.free) if memory and memory.total else None,
        "gpu_number": _told(pynvml.nvmlDeviceGetIndex, whole),
        "gpu_uuid": uuid,
        "gpu_memory_ours": max(_memory_of(gpu, run_pid), run_bytes),
    }


def _memory_of(gpu: Any, run_pid: int | None) -> int:
    """Return a run's GPU memory, or 0 if the driver does not report it."""
    processes = _told(pynvml.nvmlDeviceGetComputeRunningProcesses, gpu) or ()
    return sum(int(one.usedGpuMemory or 0) for one in processes if one.pid == run_pid)


def _machine() -> list[Any]:
    count = _told(pynvml.nvmlDeviceGetCount) or 0
    gpus = (_told(pynvml.nvmlDeviceGetHandleByIndex, i) for i in range(count))
    return [gpu for gpu in gpus if gpu is not None]


def _usable(gpu: Any) -> list[str]:
    """Return the UUID of a GPU, or of each of its MIG parts."""
    mode = _told(pynvml.nvmlDeviceGetMigMode, gpu)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return [str(pynvml.nvmlDeviceGetUUID(gpu))]
    most = _told(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0
    parts = (_told(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, i) for i in range(most))
    return [str(pynvml.nvmlDeviceGetUUID(part)) for part in parts if part is not None]


def _named(name: str) -> list[str]:
    """Return the UUIDs of the GPU, or of its parts, that a number, a UUID or a prefix of a UUID
    names."""
    if name.isdigit():
        gpu = _told(pynvml.nvmlDeviceGetHandleByIndex, int(name))
    else:
        gpu = _told(pynvml.nvmlDeviceGetHandleByUUID, name)
    if gpu is not None:
        return _usable(gpu)
    all_uuids = (uuid for gpu in _machine() for uuid in _usable(gpu))
    begin_so = [uuid for uuid in all_uuids if name and uuid.startswith(name)]
    return begin_so if len(begin_so) == 1 else []


def _told(ask: Callable[..., Any], *about: Any) -> Any:
    """Return NVML's answer, or None if it has none, for example for an unsupported feature."""
    try:
        return ask(*about)
    except pynvml.NVMLError:
        return None


def main() -> int:
    """Return 0 if there is a GPU and torch can compute on it, else 1."""
    logging.disable(logging.WARNING)  # most machines have none
    if not visible():
        return 1
    from worker.fitness import gpu_defect  # takes a second

    if (why := gpu_defect()) is not None:
        sys.stderr.write(f"torch cannot use the GPU of this machine: {why}\n")
    return 0 if why is None else 1


if __name__ == "__main__":
    sys.exit(main())
