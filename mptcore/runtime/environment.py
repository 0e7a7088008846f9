"""Describe the environment of a run, so that its results can be reproduced."""

import platform
from pathlib import Path

import torch

from mptcore.protocol.code import core_digest, package_versions
from mptcore.protocol.records import Environment
from mptcore.runtime import inputs
from mptcore.runtime.state import RunState
from mptcore.specs import ExperimentSpec
from mptcore.specs.outside import outside_families


def environment(spec: ExperimentSpec, state: RunState) -> Environment:
    """Return the environment of this process. Call it after the run has chosen device and
    threads."""
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return Environment(
        core=core_digest(),
        packages={**package_versions(), **_package_of_family(spec.model.family)},
        platform=platform.platform(),
        cpu=_cpu_model(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name() if on_gpu else None,
        gpu_driver=_gpu_driver() if on_gpu else None,
        cuda=torch.version.cuda if on_gpu else None,
        precision=state.precision,
        seeds=spec.seeds,
        inputs=inputs.used(),
        memory_was_short=state.memory_was_short,
        resumed_from=None if state.saved_on == state.device else state.saved_on,
    )


def _package_of_family(family: str) -> dict[str, str]:
    """Return the version and the digest of the package of a family from outside, by its name."""
    outside = outside_families().usable.get(family)
    if outside is None:
        return {}
    package = outside.package
    return {package.name: f"{package.version}, sources {package.digest()}"}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    parts = [line.partition(":") for line in lines]
    first = {name.strip(): value.strip() for name, _, value in reversed(parts)}
    model = first.get("model name", platform.processor() or platform.machine())
    numbers = [f"{name} {first[name]}" for name in ("cpu family", "model") if name in first]
    return ", ".join([model, *numbers])  # virtual machines often shorten the name of the model


def _gpu_driver() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
