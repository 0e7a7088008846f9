"""`make setup`, where there is an NVIDIA driver or none, a network or none."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CPU = "https://download.pytorch.org/whl/cpu"
PTH = "mptcore/data/mptlab-server.pth"
PYTHON = """mkdir -p .venv/bin .venv/lib/python3.11/site-packages
cat > .venv/bin/pip <<'PIP'
#!/bin/sh
case "$*" in *--editable*) echo "$PIP_EXTRA_INDEX_URL" > asked; esac
PIP
printf '#!/bin/sh\necho "$*" > compiled\n' > .venv/bin/python
chmod +x .venv/bin/pip .venv/bin/python
"""
"""Create an environment whose pip records its extra index, and whose python its arguments."""


@pytest.mark.parametrize(
    ("driver", "index", "asked"),
    [(False, True, [CPU]), (False, False, []), (True, True, [])],
)
def test_without_a_gpu_driver_the_cpu_build_of_torch_is_installed(
    tmp_path: Path, driver: bool, index: bool, asked: list[str]
) -> None:
    programs = {"nvidia-smi": f"exit {1 - driver}", "curl": f"exit {1 - index}", "py": PYTHON}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    (tmp_path / PTH).parent.mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "constraints-cuda.txt", PTH):
        shutil.copy(ROOT / name, tmp_path / name)
    for own in ([], ["https://lab.example/simple"]):
        (tmp_path / ".venv/.installed").unlink(missing_ok=True)
        variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PIP_EXTRA_INDEX_URL": " ".join(own)}
        make = ["make", "--file", str(ROOT / "Makefile"), "setup", "PYTHON=py"]
        subprocess.run(make, cwd=tmp_path, env=variables, check=True, capture_output=True)
        assert (tmp_path / "asked").read_text().split() == own + asked
        assert (tmp_path / "compiled").read_text() == "-m mptcore --compile\n"
    (started,) = (tmp_path / ".venv/lib").glob("*/site-packages/*.pth")
    assert started.read_text() == (ROOT / PTH).read_text()


def test_pip_prefers_the_cpu_build_if_both_are_available(tmp_path: Path) -> None:
    (pin,) = re.findall(r'"(torch==[^"]*)"', (ROOT / "pyproject.toml").read_text())
    version = pin.removeprefix("torch==")
    for offered in (version, f"{version}+cpu"):
        with zipfile.ZipFile(tmp_path / f"torch-{offered}-py3-none-any.whl", "w") as wheel:
            folder = f"torch-{offered}.dist-info"
            metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {offered}\n"
            wheel.writestr(f"{folder}/METADATA", metadata)
            wheel.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
            wheel.writestr(f"{folder}/RECORD", "")
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--no-index", "--quiet"]
    places = ["--find-links", str(tmp_path), "--constraint", str(ROOT / "constraints.txt")]
    command = [sys.executable, "-m", "pip", "install", *options, *places, "--report", "-", pin]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (chosen,) = json.loads(done.stdout)["install"]
    assert chosen["metadata"]["version"] == f"{version}+cpu"
