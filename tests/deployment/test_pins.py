"""The packages that come with torch's CUDA build are pinned too, in every installation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"([a-zA-Z0-9_.-]+)==[0-9][0-9a-z.]*")


def pinned(file: str) -> list[str]:
    lines = (ROOT / file).read_text().splitlines()
    found = [PIN.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(found), f"{file} has a line that pins nothing"
    return [one[1].lower().replace("_", "-") for one in found if one]


def test_each_package_of_cuda_is_pinned_once() -> None:
    cuda = pinned("constraints-cuda.txt")
    assert {"cuda-toolkit", "nvidia-cublas", "nvidia-cudnn-cu13", "triton"} <= set(cuda)
    assert cuda == sorted(cuda)
    assert not set(cuda) & set(pinned("constraints.txt"))


def test_both_constraint_files_are_used_to_install_torch() -> None:
    for file in ("Dockerfile", "Makefile", ".dockerignore", "docs/lab.md", "docs/operations.md"):
        text = (ROOT / file).read_text()
        assert 0 < text.count("constraints.txt") <= text.count("constraints-cuda.txt"), file
