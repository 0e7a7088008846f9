"""A user's own `import transformers` works where the lab is installed, although torchvision's
operators cannot be loaded with the torch there. test_setup.py tests the same for `make setup`."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN_CODE = """
from torchvision import datasets, transforms
import transformers
transformers.BertModel, datasets.MNIST, transforms.ToTensor
import torchvision, torch
print(torch.ops.torchvision.nms)
"""


def pip(python: Path, *arguments: str) -> None:
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", *options]
    subprocess.run([*command, *arguments], check=True)


@pytest.mark.slow
def test_own_code_imports_transformers(tmp_path: Path) -> None:
    source = tmp_path / "source"
    leave_out = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for folder in ("mptcore", "mptlab"):
        shutil.copytree(ROOT / folder, source / folder, ignore=leave_out)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, source / file)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    # Packages of this environment, but not its start-up files.
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip(venv / "bin/python", str(source))
    command = [str(venv / "bin/python"), "-c", OWN_CODE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torchvision.nms\n"
