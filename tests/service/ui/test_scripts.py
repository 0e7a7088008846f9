"""The unit tests of the page's scripts, by node's own test runner."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = Path(__file__).parent / "scripts"


def test_the_scripts_pass_their_unit_tests() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node: apt-get install nodejs, version 18 or later")
    files = sorted(map(str, SCRIPTS.glob("*.test.js")))
    done = subprocess.run([node, "--test", *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
