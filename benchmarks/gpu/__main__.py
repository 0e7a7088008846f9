"""`python -m benchmarks.gpu [checks] [measures]`: what must hold on a GPU, and how fast it is.

It needs a GPU and no network: weights and tokens are random. It also runs from the source tree
alone, where torch, transformers, numpy, scipy, safetensors, psutil, nvidia-ml-py and pydantic are
installed. A stage takes some minutes. Exit status 1 if a check fails."""

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from benchmarks.gpu import checks, measures, processes
from benchmarks.gpu.inputs import FULL, Sizes
from benchmarks.gpu.lines import HEAD, Line, Part, lines_of

STAGES: dict[str, tuple[Part, ...]] = {
    "checks": (*checks.CHECKS, *processes.CHECKS),
    "measures": measures.MEASURES,
}


def main(arguments: Sequence[str] | None = None, sizes: Sizes = FULL) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a stage, or one of its parts")
    parser.add_argument("--seconds", type=float, default=540, help="begin no part after this")
    parser.add_argument("--output", type=Path, default=Path("bench-output"))
    options = parser.parse_args(arguments)
    parts: dict[str, Part] = {part.__name__: part for stage in STAGES.values() for part in stage}
    chosen: list[Part] = []
    for name in options.names or STAGES:
        if name not in STAGES and name not in parts:
            parser.error(f"unknown: {name}; there are {', '.join([*STAGES, *parts])}")
        chosen += STAGES.get(name) or [parts[name]]
    if not torch.cuda.is_available():
        parser.error("there is no GPU here")
    until = time.monotonic() + options.seconds
    options.output.mkdir(parents=True, exist_ok=True)
    lines: list[Line] = []
    with (options.output / "gpu.md").open("w") as file:
        for text in (machine(), "", HEAD):
            print(text, file=file, flush=True)
            print(text, flush=True)
        for line in lines_of(chosen, sizes, until):
            lines.append(line)
            print(line, file=file, flush=True)
            print(line, flush=True)
    return 1 if any(line.holds is False for line in lines) else 0


def machine() -> str:
    """Return the versions and the GPU."""
    return (
        f"{torch.cuda.get_device_name()}, {torch.cuda.mem_get_info()[1] / 2**30:.1f} GiB; Python "
        f"{platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"transformers {transformers.__version__}."
    )


if __name__ == "__main__":
    sys.exit(main())
