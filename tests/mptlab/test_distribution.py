"""The client as a distribution of its own, in an environment that holds nothing else."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mptlab import __version__

ROOT = Path(__file__).parents[2]
CLIENT = tomllib.loads((ROOT / "mptlab/pyproject.toml").read_text())["project"]
SERVER = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_THE_CLIENTS = {
    "torch", "numpy", "matplotlib", "pandas", "pyarrow", "service", "worker", "mptcore",
    "sqlalchemy", "fastapi", "celery",
}  # fmt: skip


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the client's wheel, built only from its folder. The requirements
    of the wheel are copied from the environment of these tests, so no index is used."""
    folder = tmp_path_factory.mktemp("client")
    leave_out = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    source = shutil.copytree(ROOT / "mptlab", folder / "source", ignore=leave_out)
    options = ["--no-deps", "--no-index", "--no-build-isolation"]
    pip(sys.executable, "wheel", *options, "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    pip(str(python), "install", "--no-deps", "--no-index", str(wheel))
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    for needed in closure(CLIENT["dependencies"]):
        link(importlib.metadata.distribution(needed), packages)
    pip(str(python), "check")  # all is there that the wheels ask for
    return folder / "venv/bin"


def pip(python: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def closure(requirements: list[str]) -> Iterator[str]:
    """The names of all distributions that some requirements lead to."""
    seen: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name in seen or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        yield one.name
        waiting += map(Requirement, importlib.metadata.requires(one.name) or [])


def link(distribution: importlib.metadata.Distribution, packages: Path) -> None:
    """Put the files of a distribution, and no others, into another environment."""
    for file in distribution.files or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            there = packages / file
            there.parent.mkdir(parents=True, exist_ok=True)
            there.symlink_to(Path(str(file.locate())))


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run without the variables and the folder of this environment."""
    own = {key: value for key, value in os.environ.items() if key in ("HOME", "LANG")}
    command = [str(program), *arguments]
    return subprocess.run(
        command, cwd=program.parent, env=own, capture_output=True, text=True, check=False
    )


def test_the_client_needs_eight_distributions_and_the_server_the_same_of_them() -> None:
    assert [Requirement(text).name for text in CLIENT["dependencies"]] == [
        "httpx", "httpx-sse", "platformdirs", "pyyaml", "rich", "tenacity", "tqdm", "typer",
    ]  # fmt: skip
    optional = [text for extra in CLIENT["optional-dependencies"].values() for text in extra]
    assert {*CLIENT["dependencies"], *optional} <= set(SERVER["dependencies"])
    assert CLIENT["scripts"] == SERVER["scripts"]


def test_the_client_imports_no_server_code(environment: Path) -> None:
    program = "import mptlab.cli, sys; print(mptlab.__version__, *sys.modules)"
    done = run(environment / "python", "-I", "-c", program)
    version, *modules = done.stdout.split()
    assert version == __version__
    assert "httpx" in modules
    assert NOT_THE_CLIENTS.isdisjoint(modules)


def test_the_client_distribution_contains_no_server_code(environment: Path) -> None:
    program = "import sys, importlib.util as u; print(*map(u.find_spec, sys.argv[1:]))"
    done = run(environment / "python", "-I", "-c", program, *NOT_THE_CLIENTS)
    assert done.stdout.split() == ["None"] * len(NOT_THE_CLIENTS)


def test_the_command_line(environment: Path) -> None:
    assert run(environment / "mpt", "--version").stdout == f"mpt {__version__}\n"
    shown = run(environment / "mpt", "--help")
    assert shown.returncode == 0
    assert {"serve", "submit", "watch", "curves"} <= set(shown.stdout.split())


@pytest.mark.parametrize(
    ("call", "package", "extra"),
    [
        ("to_pandas()", "pandas", "frames"),
        ("to_arrow()", "pyarrow", "frames"),
        ("plot()", "matplotlib", "plots"),
    ],
)
def test_commands_that_need_an_extra_name_it(
    environment: Path, call: str, package: str, extra: str
) -> None:
    done = run(environment / "python", "-I", "-c", f"import mptlab; mptlab.Curves().{call}")
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {package} is not installed: run pip install {package}, "
        f"or install the client with its extra, 'mptlab[{extra}]'"
    )


@pytest.mark.parametrize("command", ["serve", "migrate", "worker"])
def test_commands_that_need_the_server_say_so(environment: Path, command: str) -> None:
    done = run(environment / "mpt", command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "mpt: this command needs the server, but only the client is installed: "
        "install mptlab-server\n"
    )
